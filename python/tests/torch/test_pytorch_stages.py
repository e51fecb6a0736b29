"""What stages and batches may be on PyTorch's own runtime: gradients in f64 are those of the whole model."""

import functools

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
if not hasattr(schedules._ComputationType, "WAIT_SEND_F"):
    pytest.skip("PyTorch's runtime waits for no sends", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import pytorch_runtime  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, batch, linear  # noqa: E402

close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


class Detaching(nn.Module):
    """A stage that takes its input for a number."""

    def __init__(self, stage):
        super().__init__()
        self.linear = linear(stage)

    def forward(self, x):
        return self.linear(x.detach())


class Beside(nn.Module):
    """Two tensors between stages, of which the last does not depend on the input of its stage."""

    def __init__(self, stage):
        super().__init__()
        self.linear, self.stage = linear(stage), stage
        self.own = nn.Parameter(torch.full((2, WIDTH), 0.5, dtype=torch.float64))

    def forward(self, x, y=None):
        x = self.linear(x) if y is None else self.linear(x) * y
        return x * self.own if self.stage == 2 else (x, self.own.sin())


class Turned(nn.Module):
    """An output, and a gradient of the input, whose memory is not in order."""

    def __init__(self, stage):
        super().__init__()
        self.linear = linear(stage)

    def forward(self, x):
        return self.linear(x.t().contiguous().t()).t().contiguous().t()


KINDS = {
    "frozen": lambda s: linear(s).requires_grad_(s != 0),
    "without parameters": lambda s: nn.Tanh() if s == 0 else linear(s),
    "frozen at the end": lambda s: linear(s).requires_grad_(s != 2),
    "detaching": lambda s: Detaching(s) if s == 1 else linear(s),
    "detaching at the end": lambda s: Detaching(s) if s == 2 else linear(s),
    "beside": Beside,
    "turned": Turned,
}


def three(split):
    return chimera.schedule("1f1b", depth=3, micro_batches=4).passes(split_backward=split).lower()


def kinds():
    x, y = batch()
    for name, stages in KINDS.items():
        wanted = [stages(s) for s in range(3)]
        for x_, y_ in zip(x.split(2), y.split(2)):
            value = (x_,)
            for module in wanted:
                value = module(*value)
                value = value if isinstance(value, tuple) else (value,)
            (MSE(value[0], y_) / 4).backward()
        for split in (False, True):
            runtime = pytorch_runtime(three(split), stages, MSE)
            runtime.step(x, y)
            for s, module in runtime.modules.items():
                for (key, p), q in zip(module.named_parameters(), wanted[s].parameters()):
                    where = f"{name}, split {split}: {s}.{key}"
                    # Behind a stage that detaches its input gradients are none, or zeros.
                    assert p.grad is not None or q.grad is None, where
                    if p.grad is not None:
                        close(p.grad, torch.zeros_like(p) if q.grad is None else q.grad, msg=lambda m: f"{where}: {m}")


def test_gradients_of_stages_of_many_kinds():
    on_ranks(3, kinds)


def sizes():
    """Batches of other sizes, and of other samples, after each other."""
    model = nn.Sequential(linear(0), linear(1))
    for name in ("1f1b", "chimera"):
        program = chimera.schedule(name, depth=2, micro_batches=4).lower()
        runtime = pytorch_runtime(program, linear, MSE)
        for act, n in ((runtime.step, 8), (runtime.step, 16), (runtime.step, 4), (runtime.evaluate, 16), (runtime.evaluate, 8)):
            x, y = batch(n)
            assert abs(act(x, y) - MSE(model(x), y).item()) < 1e-12, (name, n)
        x, y = batch(24)
        runtime.step(x.view(8, 3, WIDTH), y.view(8, 3, WIDTH))


def mistakes():
    own = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    program = chimera.schedule("1f1b", depth=1, micro_batches=4).lower()
    for loss, words in (
        (lambda output, target: MSE(output, target).item(), "`loss_fn` returned a float.*without `.item"),
        (lambda output, target: MSE(output, target, reduction="none"), r"a tensor of shape \[2, 4\].*reduction="),
    ):
        with pytest.raises(chimera.Error, match=words):
            pytorch_runtime(program, linear, loss, group=own).step(*batch())
    runtime = pytorch_runtime(program, lambda s: linear(s).requires_grad_(False), lambda output, target: output.sum(), group=own)
    runtime.modules[0].requires_grad_(True)
    with pytest.raises(chimera.Error, match="`0.weight` of stage 0 needs a gradient, and did not.*make a new chimera_pipeline.torch.pytorch_runtime"):
        runtime.step(*batch())


def run_on_two():
    sizes()
    mistakes()


def test_sizes_and_mistakes_on_two_ranks():
    on_ranks(2, run_on_two)
