"""Ranks of a trial: processes over gloo, and a watchdog that says which rank waits for which message."""

from __future__ import annotations

import multiprocessing as mp
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, List

import torch
import torch.distributed as dist

from .. import Error
from ._watch import Status, read_status, watch

_LOOK = 0.1
_GRACE = 5.0


class Hang(Error):
    """Ranks that wait for ever; `waits` has what each rank does, where it has not ended."""

    def __init__(self, waits: dict[int, str]) -> None:
        super().__init__("no rank goes on: " + "; ".join(f"rank {rank} {text}" for rank, text in waits.items()))
        self.waits = waits


class Failed(Error):
    """Ranks that raised; `errors` has their tracebacks."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__("; ".join(f"rank {rank} raised {text.strip().splitlines()[-1]}" for rank, text in errors.items()))
        self.errors = errors


def on_ranks(n_ranks: int, function: Callable[..., Any], *args: Any, patience: float) -> List[Any]:
    """Returns the result of `function(*args)` on each rank of a process group over gloo.

    Raises `Hang` when no rank has gone on for `patience` seconds and one waits for a message, and `Failed` when one raises.
    """
    context: Any = mp.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        # The server imports torch once for all ranks.
        context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_rank, args=(rank, n_ranks, folder, function, args), daemon=True) for rank in range(n_ranks)]
        for process in processes:
            process.start()
        try:
            _wait(processes, Path(folder), patience)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        return _results(Path(folder), processes)


def _rank(rank: int, n_ranks: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    status = Status(f"{folder}/status{rank}")
    watch(status)
    status.write("waits for the others to begin")
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=n_ranks, timeout=timedelta(hours=1))
        status.write("computes")
        made = (True, function(*args))
    except Exception:
        made = (False, traceback.format_exc())
    torch.save(made, f"{folder}/writing{rank}")
    Path(f"{folder}/writing{rank}").rename(f"{folder}/result{rank}")
    status.write("has ended")
    # The others may still have messages from here on their way.
    while made[0] and not all(Path(f"{folder}/result{other}").exists() for other in range(n_ranks)):
        time.sleep(_LOOK)


def _wait(processes: list[Any], folder: Path, patience: float) -> None:
    """Waits until all ranks have a result, one has failed, or none goes on."""
    ranks, since, before = range(len(processes)), time.monotonic(), None
    while any(process.is_alive() for process in processes):
        time.sleep(_LOOK)
        now = [read_status(str(folder / f"status{rank}")) for rank in ranks]
        if now != before:
            since, before = time.monotonic(), now
        has_result = [(folder / f"result{rank}").exists() for rank in ranks]
        if all(has_result):
            return
        idle = time.monotonic() - since
        has_died = any(not process.is_alive() and not has for process, has in zip(processes, has_result))
        if idle > min(_GRACE, patience) and (has_died or _has_failed(folder, has_result)):
            return
        if idle > patience and any(text.startswith("waits") for _, text in now):
            raise Hang({rank: text for rank, (_, text) in enumerate(now) if not has_result[rank]})


def _has_failed(folder: Path, has_result: list[bool]) -> bool:
    return any(has and not torch.load(folder / f"result{rank}", weights_only=False)[0] for rank, has in enumerate(has_result))


def _results(folder: Path, processes: list[Any]) -> list[Any]:
    made, errors = [], {}
    for rank, process in enumerate(processes):
        path = folder / f"result{rank}"
        is_right, result = torch.load(path, weights_only=False) if path.exists() else (False, f"it ended without a result (exit {process.exitcode})")
        if not is_right:
            errors[rank] = result
        made.append(result)
    if errors:
        # A rank that lost its peer tells less than the peer.
        own = {rank: text for rank, text in errors.items() if "Connection closed" not in text and "without a result" not in text}
        raise Failed(own or errors)
    return made
