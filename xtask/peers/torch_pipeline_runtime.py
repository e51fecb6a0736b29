"""Schedules in CSV files, executed by PyTorch's own pipelining runtime on CPU (gloo).

One process per rank of a file; a stage is a small network in float64. Prints one JSON line per file: how
much loss and gradients differ, relatively, from those of the same network run whole on the same batch.
With --dump, writes PyTorch's own schedules into a folder too.
Needs: pip install torch numpy (torch 2.6 or later).

  python torch_pipeline_runtime.py --dump theirs 1f1b.csv zb-h1.csv
"""
import argparse, datetime, json, os, re, tempfile
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist, torch.multiprocessing as mp

HIDDEN, SAMPLES = 8, 3  # features; samples of a micro-batch
ACTION = re.compile(r"(\d+)[FBIW](\d+)")


class Part(nn.Module):
    """A stage; the same wherever it is made."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(100 + stage)
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(3 * HIDDEN, HIDDEN)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def batch(n_micro_batches):
    torch.manual_seed(7)
    return torch.randn(2, n_micro_batches * SAMPLES, HIDDEN)


def whole(n_stages, n_micro_batches):
    """Loss, and gradients by stage, of the network run whole."""
    parts = nn.Sequential(*(Part(stage) for stage in range(n_stages)))
    x, y = batch(n_micro_batches)
    loss = F.mse_loss(parts(x), y)
    loss.backward()
    return loss.item(), [[p.grad for p in part.parameters()] for part in parts]


def run(rank, rows, path):
    """Relative differences of loss and of gradients over all ranks."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    actions = [[(int(s), int(m)) for s, m in ACTION.findall(row)] for row in rows]
    n_stages = 1 + max(s for row in actions for s, _ in row)
    n_micro_batches = 1 + max(m for row in actions for _, m in row)
    stages = sorted({s for s, _ in actions[rank]})
    mine = {s: PipelineStage(Part(s), s, n_stages, torch.device("cpu")) for s in stages}
    schedule = _PipelineScheduleRuntime(list(mine.values()), n_micro_batches, loss_fn=F.mse_loss)
    if path.endswith(".comms.csv"):
        ranks = {s: rank for rank, row in enumerate(actions) for s, _ in row}
        schedule.stage_index_to_group_rank = ranks
        for stage in mine.values():
            stage.stage_index_to_group_rank = ranks
        schedule._load_csv(path, format="compute_comms")
    else:
        schedule._load_csv(path, format="compute_only")
    x, y = batch(n_micro_batches)
    losses = []
    is_last = n_stages - 1 in mine
    schedule.step(*((x,) if 0 in mine else ()), **(dict(target=y, losses=losses) if is_last else {}))

    loss, grads = whole(n_stages, n_micro_batches)
    errors = torch.zeros(2)
    if is_last:
        assert len(losses) == n_micro_batches
        errors[0] = abs(sum(l.item() for l in losses) / n_micro_batches - loss) / loss
    for s, stage in mine.items():
        for p, wanted in zip(stage.submod.parameters(), grads[s], strict=True):
            error = torch.inf if p.grad is None else (p.grad - wanted).norm() / wanted.norm()
            errors[1] = torch.maximum(errors[1], torch.as_tensor(error))
    dist.all_reduce(errors, dist.ReduceOp.MAX)
    n_actions = sum(len(row) for row in actions)
    return dict(stages=n_stages, micro_batches=n_micro_batches, actions=n_actions, loss_error=errors[0].item(), gradient_error=errors[1].item())


def dump(rank, n_ranks, folder):
    """PyTorch's own schedules of two stages per rank, as it writes them."""
    from torch.distributed.pipelining import PipelineStage, schedules

    loop, v = [rank, rank + n_ranks], [rank, 2 * n_ranks - 1 - rank]
    for name, mine in dict(
        ScheduleInterleaved1F1B=loop,
        ScheduleLoopedBFS=loop,
        ScheduleInterleavedZeroBubble=loop,
        ScheduleZBVZeroBubble=v,
        ScheduleDualPipeV=v,
    ).items():
        if kind := getattr(schedules, name, None):  # not every version has all
            stages = [PipelineStage(Part(s), s, 2 * n_ranks, torch.device("cpu")) for s in mine]
            schedule = kind(stages, 2 * n_ranks + 2, loss_fn=F.mse_loss)
            if rank == 0:
                schedule._dump_csv(os.path.join(folder, name + ".csv"), format="compute_only")


def work(rank, n_ranks, store, paths, folder):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=timeout)
    for path in paths:
        with open(path) as file:
            result = run(rank, file.read().splitlines(), path)
        if rank == 0:
            print(json.dumps(dict(file=os.path.basename(path), torch=torch.__version__, **result)), flush=True)
    if folder:
        dump(rank, n_ranks, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--dump")
    args = parser.parse_args()
    by_ranks = {}
    for path in args.files:
        with open(path) as file:
            by_ranks.setdefault(len(file.read().splitlines()), []).append(path)
    for n_ranks, paths in sorted(by_ranks.items()):
        with tempfile.TemporaryDirectory() as folder:
            # Ends all processes with the first that fails.
            mp.spawn(work, (n_ranks, os.path.join(folder, "store"), paths, args.dump), nprocs=n_ranks)
