"""Drawn orders run on two runtimes without a false alarm of the kit."""

import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.pipelining.schedules")

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.conform import Trial, check_order, named  # noqa: E402
from chimera_pipeline.conform._check import compare  # noqa: E402
from chimera_pipeline.conform._trial import record  # noqa: E402
from chimera_pipeline.conform._whole import Whole  # noqa: E402
from chimera_pipeline.torch import Runtime, pytorch_runtime  # noqa: E402
from torch import nn  # noqa: E402

import drawn  # noqa: E402
from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, linear, sgd  # noqa: E402

N, DEPTH = int(os.environ.get("CHIMERA_RUN_ORDERS", 8)), 3
RUNTIMES = ("ours", "PyTorch's")


def batches(micro_batches):
    torch.manual_seed(11)
    return [tuple(torch.randn(2 * micro_batches, WIDTH, dtype=torch.float64) for _ in range(2)) for _ in range(2)]


def programs():
    """Programs of the first orders that have as many ranks as run."""
    made, seed = [], 0
    while len(made) < N:
        order = drawn.order(seed)
        if len(order.rows) == DEPTH and not order.has_messages:
            made.append(check_order(order).program)
        seed += 1
    return made


def trial(program, kind):
    if kind == "ours":
        runtime = Runtime(program, linear, MSE, None)
    else:
        runtime = pytorch_runtime(program, linear, MSE)
    optimizer = sgd([p for module in runtime.modules.values() for p in module.parameters()])

    def update():
        optimizer.step()
        optimizer.zero_grad()

    return Trial(runtime.step, named(runtime.modules), runtime.clip_grad_norm_, update, named(runtime.modules))


def run_all():
    return [[record(lambda: trial(program, kind), batches(program.micro_batches), 0.05) for kind in RUNTIMES] for program in programs()]


def test_drawn_orders_run_as_the_whole_model():
    ranks = on_ranks(DEPTH, run_all)
    for index, program in enumerate(programs()):
        for number, kind in enumerate(RUNTIMES):
            model = nn.Sequential(*(linear(stage) for stage in range(program.stages)))
            whole = Whole(model, MSE, program.micro_batches, is_sum=False, optimizer=sgd, max_norm=0.05)
            records = [its[index][number] for its in ranks]
            found, _ = compare(records, whole, batches(program.micro_batches), max_norm=0.05, tolerance=1e-10)
            assert not found, (program.schedule, kind, "\n".join(map(str, found)))
