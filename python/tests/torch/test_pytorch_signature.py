"""The signature of PyTorch's schedules, keywords for every stage, sums, and batches that one rank refuses."""

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

NAMES = ("1f1b", "chimera", "dualpipe", "zb-v")
close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


class Scaled(nn.Module):
    """A stage that takes a tensor and a number beside its input."""

    def __init__(self, stage):
        super().__init__()
        self.linear = linear(stage)

    def forward(self, x, *, mask, power=1):
        return x + self.linear(x) * mask**power


def weighted(output, target, weight=1.0):
    return MSE(output, target) * weight


def whole(n_stages, x, y, mask, power=1, weight=1.0):
    """The losses of four micro-batches, their outputs, and the gradients of the sum."""
    model = [Scaled(stage) for stage in range(n_stages)]
    losses, outputs = [], []
    for x_, y_, mask_ in zip(x.chunk(4), y.chunk(4), mask.chunk(4)):
        for module in model:
            x_ = module(x_, mask=mask_, power=power)
        losses.append(weighted(x_, y_, weight))
        outputs.append(x_.detach())
    sum(losses).backward()
    return [loss.item() for loss in losses], outputs, model


def check_gradients(runtime, model, factor, name):
    for stage, module in runtime.modules.items():
        for p, q in zip(module.parameters(), model[stage].parameters()):
            close(p.grad, q.grad * factor, msg=lambda m: f"{name}: {m}")


def keywords(name):
    """`step` and `evaluate` of our own."""
    program = chimera.schedule(name, depth=2, micro_batches=4, scaling="direct").lower()
    x, y = batch()
    mask = torch.rand(len(x), WIDTH, dtype=x.dtype)
    losses, _, model = whole(program.stages, x, y, mask, power=2)
    for scales, factor in ((True, 1 / 4), (False, 1)):
        runtime = pytorch_runtime(program, Scaled, lambda output, target: MSE(output, target["y"][0]), scale_grads=scales)
        target = {"y": (y, y)}
        assert abs(runtime.step(x, target, mask=mask, power=2) - sum(losses) * factor) < 1e-12, name
        check_gradients(runtime, model, factor, name)
        assert abs(runtime.evaluate(x, target, mask=mask, power=2) - sum(losses) * factor) < 1e-12, name


def signature(name):
    """PyTorch's `step` and `eval`, of whole batches and of micro-batches."""
    program = chimera.schedule(name, depth=2, micro_batches=4, scaling="direct").lower()
    x, y = batch()
    mask = torch.rand(len(x), WIDTH, dtype=x.dtype)
    wanted, outputs, model = whole(program.stages, x, y, mask, weight=3.0)
    runtime = pytorch_runtime(program, Scaled, weighted, scale_grads=False)
    schedule, losses = runtime.schedule, []
    assert isinstance(schedule, schedules._PipelineSchedule)
    is_first, is_last = 0 in runtime.modules, program.stages - 1 in runtime.modules
    given = dict(
        arg_mbs=[(part,) for part in x.chunk(4)] if is_first else None,
        kwarg_mbs=[{"mask": part} for part in mask.chunk(4)],
        target_mbs=list(y.chunk(4)) if is_last else None,
        losses=losses if is_last else None,
    )
    assert schedule.step(**given, loss_kwargs={"weight": 3.0}, return_outputs=False) is None
    assert len(losses) == (4 if is_last else 0), name
    assert all(abs(loss.item() - its) < 1e-12 for loss, its in zip(losses, wanted)), name
    check_gradients(runtime, model, 1, name)
    # A second step adds to the gradients that are there.
    made = schedule.step(*([x] if is_first else []), target=y if is_last else None, mask=mask, loss_kwargs={"weight": 3.0})
    check_gradients(runtime, model, 2, name)
    own = [stage.stage_index // program.stages for stage in schedule._stages if stage.is_last]
    pipes = {op["units"][0]: op["pipe"] for row in program.to_dict()["rows"] for i in row["instructions"] if i["do"] == "run" for op in i["ops"]}
    here = [outputs[m] for m in range(4) if pipes[m] in own]
    assert (made is None) == (not is_last)
    if is_last:
        close(made, torch.cat(here), msg=lambda m: f"{name}: {m}")
    with torch.no_grad():
        evaluated = schedule.eval(*([x] if is_first else []), mask=mask)
        assert (evaluated is None) == (not is_last)
        schedule.eval(**given)
    assert all(abs(3 * loss.item() - its) < 1e-12 for loss, its in zip(losses, wanted)), name


def refused():
    """A refusal of one rank is raised on both, and the next step works."""
    program = chimera.schedule("1f1b", depth=2, micro_batches=4).lower()
    runtime, (x, y) = pytorch_runtime(program, Scaled, MSE), batch()
    rank, mask = dist.get_rank(), torch.ones(8, WIDTH, dtype=x.dtype)

    def says(on_first, on_second, act):
        # PyTorch's own checks raise other ValueErrors.
        with pytest.raises(ValueError, match=(on_first, on_second)[rank]):
            act()

    def of_rank(number, given, otherwise):
        return given if rank == number else otherwise

    def could_not(number, why):
        return f"rank {number} of the group could not take its batch: Error: .*{why}"

    says(could_not(1, "needs `target`"), "needs `target`", lambda: runtime.step(x, mask=mask))
    cut = "do not divide into 4"
    says(could_not(1, cut), cut, lambda: runtime.step(x, y, mask=of_rank(1, mask[:7], mask)))
    off = "gradients are off"
    says(could_not(1, off), off, lambda: _with_gradients(of_rank(1, False, True), lambda: runtime.step(x, y, mask=mask)))
    acts = r"ranks \[1\] of the group evaluate and the others train"
    says(acts, acts, lambda: of_rank(1, runtime.evaluate, runtime.step)(x, y, mask=mask))
    uneven, shape = [(part,) for part in x.split([2, 2, 1, 3])], "micro-batch 2 is .*give all of a step one shape"
    masks = [{"mask": part} for part in mask.split(2)]
    given = dict(arg_mbs=of_rank(0, uneven, None), kwarg_mbs=masks, target_mbs=list(y.split(2)))
    says(shape, could_not(0, shape), lambda: runtime.schedule.step(**given))
    few = "`arg_mbs` has|Expecting 4"
    says(could_not(1, few), few, lambda: runtime.schedule.step(**{**given, "arg_mbs": None, "target_mbs": list(y.split(of_rank(1, 4, 2)))}))
    losses, _, model = whole(2, x, y, mask)
    assert abs(runtime.step(x, y, mask=mask) - sum(losses) / 4) < 1e-12
    check_gradients(runtime, model, 1 / 4, "after mistakes")


def _with_gradients(is_on, act):
    with torch.set_grad_enabled(is_on):
        return act()


def meta():
    """Stages get their weights after the runtime; replicas then get those of the first."""
    program = chimera.schedule("chimera", depth=2, micro_batches=4).lower()

    def stage(number):
        with torch.device("meta"):
            return nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    runtime, (x, y) = pytorch_runtime(program, stage, MSE), batch()
    with pytest.raises(chimera.Error, match="on the meta device.*call to_empty"):
        runtime.step(x, y)
    for number, module in runtime.modules.items():
        module.to_empty(device="cpu")
        torch.manual_seed(10 * dist.get_rank() + number)
        module.reset_parameters()
    runtime.step(x, y)
    return {f"{s}.{n}": (p.detach(), p.grad) for s, module in runtime.modules.items() for n, p in module.named_parameters()}


def run_on_two():
    for name in NAMES:
        keywords(name)
        signature(name)
    refused()
    return meta()


def test_pytorchs_signature_on_two_ranks():
    first, second = on_ranks(2, run_on_two)
    assert first.keys() == second.keys()
    assert all(torch.equal(a, b) for name in first for a, b in zip(first[name], second[name]))
