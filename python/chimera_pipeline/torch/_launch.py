"""Ranks that a notebook or a script starts by itself."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, List

import torch
import torch.distributed as dist

from .. import Error


def launch(function: Callable[..., Any], n_ranks: int, *args: Any, backend: str = "gloo", timeout: float = 1800.0) -> List[Any]:
    """Runs `function(*args)` on several ranks of this machine, and returns the result of each.

    Processes are forked, so that a function of a notebook's cell will do; on Windows it must be in a module. As with any fork,
    the notebook must not have trained by itself or used a GPU before: start such work by `launch`, too. Each rank has one
    thread. `timeout` is that of the process group, in seconds. Raises `chimera.Error` with what a rank raised.
    """
    if n_ranks < 1:
        raise Error(f"`n_ranks` is {n_ranks}: choose 1 or more")
    context: Any = mp.get_context("spawn" if sys.platform == "win32" else "fork")
    with tempfile.TemporaryDirectory() as folder:
        about = (n_ranks, folder, _free_port(), backend, timeout)
        processes = [context.Process(target=_rank, args=(rank, *about, function, args)) for rank in range(n_ranks)]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join()
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()
        return _results(folder, n_ranks)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _rank(
    rank: int, n_ranks: int, folder: str, port: int, backend: str, timeout: float, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n_ranks, "LOCAL_WORLD_SIZE": n_ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        made = True, function(*args)
        # The others may still have messages from here on their way.
        dist.barrier()
    except BaseException:
        made = False, traceback.format_exc()
    torch.save(made, Path(folder) / str(rank))
    sys.stdout.flush()
    sys.stderr.flush()
    # What is registered to run at the end belongs to the process that was forked.
    os._exit(0 if made[0] else 1)


def _results(folder: str, n_ranks: int) -> List[Any]:
    read = [_read(folder, rank) for rank in range(n_ranks)]
    errors = {rank: text for rank, (is_right, text) in enumerate(read) if not is_right}
    if errors:
        # A rank that lost its peer says less than the peer.
        first = next((rank for rank, text in errors.items() if "Connection " not in text), min(errors))
        raise Error(f"rank {first} of {n_ranks} failed:\n{errors[first]}")
    return [result for _, result in read]


def _read(folder: str, rank: int) -> tuple[bool, Any]:
    path = Path(folder) / str(rank)
    if not path.exists():
        return False, "it ended without a result (Connection closed), such as for lack of memory"
    read: tuple[bool, Any] = torch.load(path, weights_only=False)
    return read
