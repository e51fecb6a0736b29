"""Functions on several processes, which are the ranks of a process group over gloo."""

import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(n_ranks, function, *args):
    """What `function(*args)` returns on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (n_ranks, folder, function, args), nprocs=n_ranks)
        results = [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(n_ranks)]
    failed = [result for result in results if isinstance(result, str)]
    if failed:
        # A rank that lost its peer says less than the peer.
        raise AssertionError(next((text for text in failed if "Connection " not in text), failed[0]))
    return results


def _rank(rank, n_ranks, folder, function, args):
    torch.set_num_threads(1)
    meet = {"init_method": f"file://{folder}/meet", "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", rank=rank, world_size=n_ranks, **meet)
    try:
        result = function(*args)
    except Exception:
        result = traceback.format_exc()
    torch.save(result, Path(folder) / f"writing{rank}")
    (Path(folder) / f"writing{rank}").rename(Path(folder) / str(rank))
    # The others may still have messages from here on their way.
    while not isinstance(result, str) and not all((Path(folder) / str(other)).exists() for other in range(n_ranks)):
        time.sleep(0.02)
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads abort some processes that end in the ordinary way.
    os._exit(0)
