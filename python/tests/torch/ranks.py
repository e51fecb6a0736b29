"""Functions on several processes, which are the ranks of a process group over gloo."""

import tempfile
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
    for result in results:
        if isinstance(result, str):
            raise AssertionError(result)
    return results


def _rank(rank, n_ranks, folder, function, args):
    torch.set_num_threads(1)
    meet = {"init_method": f"file://{folder}/meet", "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", rank=rank, world_size=n_ranks, **meet)
    try:
        result = function(*args)
    except Exception:
        result = traceback.format_exc()
    torch.save(result, Path(folder) / str(rank))
    dist.destroy_process_group()
