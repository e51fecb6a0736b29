"""Steps of two ranks over gloo, in turns: PyTorch's own runtime with its 1F1B, and `chimera_pipeline.torch.Runtime` with 1F1B and Chimera.

    torchrun --nproc-per-node 2 benches/speed.py

Each rank computes on one core. A step is losses, gradients and the update of plain SGD. Printed are the median of each,
and the ratio of each to PyTorch's 1F1B: the median over turns of that turn's ratio, with its quartiles. What this
package measured of itself follows: the median over turns of the step over its prediction, which is the schedule
simulated with the median times of that step's own ops, and the reductions and updates after the last of them.
"""

import argparse
import statistics
import time

import chimera_pipeline as chimera
import torch
import torch.distributed as dist
import torch.nn.functional as F
from chimera_pipeline.torch import Runtime
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

DEPTH = 2


class Sleep(torch.autograd.Function):
    """Takes its time, and no core: what a step then costs beyond it is the runtime's."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        time.sleep(2 * ctx.seconds)
        return dy.clone(), None


class Sleeping(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.scale = seconds, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return Sleep.apply(x * self.scale, self.seconds)


def stage(index, options):
    if options.sleep:
        return Sleeping(options.sleep / 1e3)
    torch.manual_seed(index)
    n = options.width
    return nn.Sequential(*(nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n)) for _ in range(options.layers)))


def ours(name, options):
    """A step by this package, and its runtime."""
    program = chimera.schedule(name, depth=DEPTH, micro_batches=options.micro_batches).lower()
    runtime = Runtime(
        program,
        stages=lambda s: stage(s, options),
        loss_fn=F.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )
    return runtime.step, runtime


def pytorchs(options):
    """A step by PyTorch's runtime."""
    rank = dist.get_rank()
    module = stage(rank, options)
    schedule = Schedule1F1B(PipelineStage(module, rank, DEPTH, torch.device("cpu")), options.micro_batches, F.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        losses = []
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == DEPTH - 1 else {}))
        optimizer.step()
        return losses

    return step, None


def predicted(runtime):
    """How long the last step would have taken if its ops had waited for nothing but each other; and the part after them."""
    timeline = runtime.timeline()
    took = {}
    for event in timeline.events:
        for kind, _, stage, _ in event.get("ops", []):
            took.setdefault((kind, stage), []).append(event["end"] - event["start"])
    of_kind = lambda kind: [statistics.median(took[kind, s]) for s in range(DEPTH)]
    after = timeline.makespan - max(event["end"] for event in timeline.events if "ops" in event)
    return runtime.program.simulate(forward=of_kind("F"), backward=of_kind("B")).makespan + after, after


def timed(step, x, y):
    """How long the slowest rank took."""
    dist.barrier()
    start = time.perf_counter()
    step(x, y)
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--micro-batches", type=int, default=8)
    options.add_argument("--samples", type=int, default=512, help="of a micro-batch")
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--layers", type=int, default=2, help="of a stage")
    options.add_argument("--sleep", type=float, help="milliseconds for which a forward sleeps instead of computing")
    options.add_argument("--turns", type=int, default=40)
    options = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ways = {
        "PyTorch's 1F1B": pytorchs(options),
        "1F1B": ours("1f1b", options),
        "Chimera": ours("chimera", options),
    }
    x = torch.randn(options.micro_batches * options.samples, options.width)
    y = torch.randn_like(x)
    times = {name: [] for name in ways}
    predictions = {name: [] for name, (_, runtime) in ways.items() if runtime}
    for turn in range(options.turns + 3):
        order = list(ways) if turn % 2 else list(reversed(ways))
        for name in order:
            took = timed(ways[name][0], x, y)
            if turn >= 3:
                times[name].append(took)
                if name in predictions:
                    predictions[name].append(predicted(ways[name][1]))
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {vars(options)}")
        peer = times["PyTorch's 1F1B"]
        for name, took in times.items():
            ratios = sorted(p / t for p, t in zip(peer, took))
            quarter = len(ratios) // 4
            print(
                f"{name:15} {1e3 * statistics.median(took):8.1f} ms   {statistics.median(ratios):.3f} times as fast "
                f"({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})"
            )
        for name, of_turns in predictions.items():
            over = statistics.median(took / step for took, (step, _) in zip(times[name], of_turns))
            after = statistics.median(after / took for took, (_, after) in zip(times[name], of_turns))
            print(f"{name:15} {over:.3f} times its prediction; reductions and updates at its end are {after:.1%} of it")
        foretold = [one / two for (one, _), (two, _) in zip(predictions["1F1B"], predictions["Chimera"])]
        print(f"Chimera, predicted from its ops: {statistics.median(foretold):.3f} times as fast as 1F1B")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
