"""Schedules in CSV files, executed by PyTorch's own pipelining runtime on CPU (gloo).

One process per rank of a file; a stage is a small network in float64. Prints one JSON line per file: how
much loss and gradients differ, relatively, from those of the same network run whole on the same batch, and
whether the replicas of each stage have equal gradients. A file `NAME, 2 pipes.comms.csv` holds the virtual
stages of two pipes. With --dump, writes PyTorch's own schedules into a folder too.
Needs: pip install torch numpy (torch 2.6 or later, and 2.15 for files with messages).

  python torch_pipeline_runtime.py --dump theirs 1f1b.csv "chimera, 2 pipes.comms.csv"
"""
import argparse, datetime, json, os, re, sys, tempfile
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist, torch.multiprocessing as mp

HIDDEN, SAMPLES = 8, 3  # features; samples of a micro-batch
ACTION = re.compile(r"(\d+)[FBIW](\d+)")
PIPES = re.compile(r", (\d+) pipes\.comms\.csv$")
TORCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/chimera_pipeline/torch")


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
    actions = [[(int(s), int(m)) for s, m in ACTION.findall(row)] for row in rows]
    pipes = PIPES.search(path)
    n_pipes = int(pipes[1]) if pipes else 1
    n_virtual = 1 + max(s for row in actions for s, _ in row)
    n_stages, n_micro_batches = n_virtual // n_pipes, 1 + max(m for row in actions for _, m in row)
    x, y = batch(n_micro_batches)
    ranks = {s: rank for rank, row in enumerate(actions) for s, _ in row}
    holders = [sorted({ranks[s] for s in ranks if s % n_stages == stage}) for stage in range(n_stages)]
    mine = {stage: Part(stage) for stage in range(n_stages) if rank in holders[stage]}
    virtual = sorted(s for s, of in ranks.items() if of == rank)
    if pipes:
        losses = run_pipes(mine, virtual, (n_stages, n_pipes, n_micro_batches), ranks, rows, x, y)
    else:
        losses = run_one_pipe(mine, n_stages, n_micro_batches, ranks, path, x, y)

    loss, grads = whole(n_stages, n_micro_batches)
    total = torch.tensor([sum(losses), len(losses)], dtype=torch.float64)
    dist.all_reduce(total)
    assert total[1] == n_micro_batches
    errors = torch.tensor([abs(total[0] / n_micro_batches - loss) / loss, 0, 0])
    for stage in range(n_stages):
        shapes = [p.shape for p in Part(stage).parameters()]
        here = [p.grad for p in mine[stage].parameters()] if stage in mine else [torch.zeros(shape) for shape in shapes]
        sums = [summed(grad, holders[stage]) for grad in here]
        if stage in mine:
            for grad, wanted in zip(sums, grads[stage], strict=True):
                errors[1] = torch.maximum(errors[1], (grad - wanted).norm() / wanted.norm())
        for grad in sums:
            errors[2] = torch.maximum(errors[2], differs(grad, holders[stage]))
    dist.all_reduce(errors, dist.ReduceOp.MAX)
    n_actions = sum(len(row) for row in actions)
    return dict(
        stages=n_stages, pipes=n_pipes, micro_batches=n_micro_batches, actions=n_actions,
        loss_error=errors[0].item(), gradient_error=errors[1].item(), replicas_are_equal=errors[2].item() == 0,
    )


def run_one_pipe(mine, n_stages, n_micro_batches, ranks, path, x, y):
    """Losses of the micro-batches by PyTorch's runtime as it is; gradients are left in the modules."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    stages = [PipelineStage(part, s, n_stages, torch.device("cpu")) for s, part in mine.items()]
    schedule = _PipelineScheduleRuntime(stages, n_micro_batches, loss_fn=F.mse_loss)
    if path.endswith(".comms.csv"):
        schedule.stage_index_to_group_rank = ranks
        for stage in stages:
            stage.stage_index_to_group_rank = ranks
        schedule._load_csv(path, format="compute_comms")
    else:
        schedule._load_csv(path, format="compute_only")
    losses = []
    is_last = n_stages - 1 in mine
    schedule.step(*((x,) if 0 in mine else ()), **(dict(target=y, losses=losses) if is_last else {}))
    return [loss.item() for loss in losses]


def run_pipes(mine, virtual, counts, ranks, rows, x, y):
    """Losses of the micro-batches of all pipes that end here, by PyTorch's runtime as chimera_pipeline.torch extends it."""
    sys.path.insert(0, TORCH)
    from _virtual_stages import VirtualSchedule, VirtualStage

    n_stages, n_pipes, n_micro_batches = counts
    stages = [VirtualStage(mine[v % n_stages], v, n_stages, n_pipes, torch.device("cpu")) for v in virtual]
    schedule = VirtualSchedule(stages, rows, ranks, n_micro_batches, F.mse_loss)
    losses = []
    inputs, targets = [(part,) for part in x.chunk(n_micro_batches)], list(y.chunk(n_micro_batches))
    schedule.step(arg_mbs=inputs, target_mbs=targets, losses=losses, return_outputs=False)
    return [loss.item() for loss in losses]


def gathered(tensor, ranks):
    """The tensors of some ranks, in their order."""
    all_of_them = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, tensor)
    return [all_of_them[rank] for rank in ranks]


def summed(tensor, ranks):
    """The sum over some ranks, added in their order."""
    first, *others = gathered(tensor, ranks)
    for other in others:
        first = first + other
    return first


def differs(tensor, ranks):
    """1 if a bit of the tensors of some ranks differs, else 0."""
    first, *others = gathered(tensor, ranks)
    return torch.tensor(0.0 if all(torch.equal(first, other) for other in others) else 1.0)


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
