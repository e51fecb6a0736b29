"""PyTorch's own runtime carries out programs of several pipes: loss and gradients in f64 are those of the whole model."""

import functools
import sys

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
if not hasattr(schedules._ComputationType, "WAIT_SEND_F"):
    pytest.skip("PyTorch's runtime waits for no sends", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import chimera_pipeline.torch  # noqa: E402
from chimera_pipeline.torch import pytorch_runtime  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from ranks import on_ranks  # noqa: E402

WIDTH, TOLERANCE = 6, 1e-12
MSE = nn.functional.mse_loss

CASES = {
    "1f1b": dict(micro_batches=8),
    "1f1b, one micro-batch": dict(micro_batches=1),
    "chimera": dict(micro_batches=4),
    "chimera, four pipes": dict(micro_batches=8, pipes=4),
    "chimera, odd": dict(micro_batches=5, scaling="direct"),
    "chimera, a pipe without micro-batches": dict(micro_batches=1),
    "chimera, doubling": dict(micro_batches=8, scaling="doubling"),
    "dualpipe": dict(micro_batches=8),
    "gems": dict(micro_batches=4),
    "gems, odd": dict(micro_batches=3),
    "mixpipe": dict(micro_batches=8),
    "zb-h1": dict(micro_batches=8),
    "zb-v": dict(micro_batches=8),
    "interleaved": dict(micro_batches=8),
}


class Part(nn.Module):
    """A stage in which one weight is used twice; a frozen one and one without a gradient are among its tensors."""

    def __init__(self, stage, seed=0):
        super().__init__()
        torch.manual_seed(stage + seed)
        self.norm = nn.LayerNorm(WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=stage % 2 == 0)
        self.frozen = nn.Parameter(torch.rand(WIDTH), requires_grad=False)
        self.double()

    def forward(self, x):
        hidden = torch.tanh(self.twice(self.norm(x)))
        return x * self.frozen + self.out(hidden * self.twice(hidden))


def batch(step, n=240):
    torch.manual_seed(1000 + step)
    return torch.randn(n, WIDTH, dtype=torch.float64), torch.randn(n, WIDTH, dtype=torch.float64)


def timetable(name, depth=4):
    return chimera.schedule(name.split(",")[0], depth=depth, **CASES[name])


def split_timetable():
    return chimera.schedule("chimera", micro_batches=8, scaling="direct").passes(split_backward=True)


def own_timetable():
    """Two workers that hold both stages: each has two first, two last and two local neighbours."""
    rows = [[], []]
    for worker, pipe in ((0, 0), (1, 1), (0, 2), (1, 3)):
        for micro_batch in range(pipe, 8, 4):
            rows[worker] += [(kind, pipe, stage, micro_batch) for kind, stage in (("F", 0), ("F", 1), ("B", 1), ("B", 0))]
    return chimera.timetable([[0, 0], [1, 1], [0, 0], [1, 1]], rows)


def loss_and_gradients(runtime, step):
    loss = runtime.step(*batch(step))
    named = {f"{s}.{n}": p.grad for s, module in runtime.modules.items() for n, p in module.named_parameters()}
    return loss, {name: grad if grad is None else grad.clone() for name, grad in named.items()}


def run(text):
    program = chimera.parse(text).lower()
    # Other weights on other ranks: those of the first replica are taken.
    runtime = pytorch_runtime(program, functools.partial(Part, seed=0), MSE)
    results = [loss_and_gradients(runtime, 0), loss_and_gradients(runtime, 1)]
    evaluated = runtime.evaluate(*batch(2))
    assert all(module.training for module in runtime.modules.values())
    return [*results, (evaluated, {}), loss_and_gradients(runtime, 3)]


def run_all(texts):
    return {name: run(text) for name, text in texts.items()}


def whole(n_stages, step):
    model = nn.Sequential(*(Part(stage) for stage in range(n_stages)))
    x, y = batch(step)
    loss = MSE(model(x), y)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def check(timetables, n_ranks):
    texts = {name: made.to_json() for name, made in timetables.items()}
    results = on_ranks(n_ranks, run_all, texts)
    for name, text in texts.items():
        for step in range(4):
            loss, grads = whole(chimera.parse(text).stages, step)
            seen = {}
            for theirs, named in (result[name][step] for result in results):
                assert abs(theirs - loss) < TOLERANCE, name
                for key, grad in named.items():
                    where = f"{name}, step {step}: {key}"
                    if grads[key] is None:
                        assert grad is None, where
                        continue
                    torch.testing.assert_close(grad, grads[key], rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m: f"{where}: {m}")
                    # Replicas are equal to the bit.
                    assert torch.equal(seen.setdefault(key, grad), grad), where
            assert step == 2 or seen.keys() == {key for key, grad in grads.items() if grad is not None}, name


def test_programs_compute_what_the_whole_model_does():
    check({**{name: timetable(name) for name in CASES}, "chimera, split": split_timetable()}, 4)


def test_a_worker_may_hold_a_stage_in_two_pipes():
    check({"gems": chimera.schedule("gems", depth=3, micro_batches=6)}, 3)
    check({"own": own_timetable()}, 2)


class Several(nn.Module):
    """Two tensors between stages, and two inputs of the first."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(stage)
        self.linear, self.is_last = nn.Linear(WIDTH, WIDTH, dtype=torch.float64), stage == 1

    def forward(self, a, b):
        a = self.linear(a).tanh() * b
        return a + b if self.is_last else (a, a + b)


def several():
    program = chimera.schedule("chimera", depth=2, micro_batches=4).lower()
    runtime = pytorch_runtime(program, Several, MSE)
    (x, y), z = batch(0), batch(1)[0]
    loss, (first, last) = runtime.step((x, z), y), (Several(0), Several(1))
    wanted = MSE(last(*first(x, z)), y)
    wanted.backward()
    assert abs(loss - wanted.item()) < TOLERANCE
    for stage, module in enumerate((first, last)):
        for p, q in zip(module.parameters(), runtime.modules[stage].parameters()):
            torch.testing.assert_close(q.grad, p.grad, rtol=TOLERANCE, atol=TOLERANCE)


class Masked(nn.Module):
    """A mask, which needs no gradient, and the positions that it came from beside what stages compute."""

    def __init__(self, stage, n_stages):
        super().__init__()
        torch.manual_seed(stage)
        self.linear, self.is_last = nn.Linear(WIDTH, WIDTH, dtype=torch.float64), stage + 1 == n_stages

    def forward(self, x, mask=None, positions=None):
        if mask is None:
            positions = torch.arange(WIDTH).expand(len(x), WIDTH).contiguous()
            mask = (positions % 2).double()
        x = x + self.linear(x).tanh() * mask
        return x if self.is_last else (x, mask, positions)


def masked():
    """Whole backwards and split ones, with stages of several pipes and with two stages on a worker."""
    for name in ("1f1b", "dualpipe", "zb-v", "zb-h1"):
        program = chimera.schedule(name, depth=2, micro_batches=4).lower()
        runtime = pytorch_runtime(program, lambda s: Masked(s, program.stages), MSE)
        x, y = batch(0)
        loss, model = runtime.step(x, y), [Masked(s, program.stages) for s in range(program.stages)]
        given = (x,)
        for module in model:
            made = module(*given)
            given = made if isinstance(made, tuple) else (made,)
        wanted = MSE(given[0], y)
        wanted.backward()
        assert abs(loss - wanted.item()) < TOLERANCE, name
        for stage, module in runtime.modules.items():
            for p, q in zip(module.parameters(), model[stage].parameters()):
                torch.testing.assert_close(p.grad, q.grad, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m: f"{name}: {m}")


def clipped():
    """Each stage counts once, however many ranks hold it."""
    for name in ("1f1b", "chimera", "dualpipe"):
        program = chimera.schedule(name, depth=2, micro_batches=4).lower()
        runtime = pytorch_runtime(program, Part, MSE)
        runtime.step(*batch(0))
        model = nn.Sequential(*(Part(stage) for stage in range(program.stages)))
        MSE(model(batch(0)[0]), batch(0)[1]).backward()
        wanted = nn.utils.clip_grad_norm_(model.parameters(), 1e-2).item()
        assert abs(runtime.clip_grad_norm_(1e3) - wanted) < TOLERANCE, name
        assert abs(runtime.clip_grad_norm_(1e-2) - wanted) < TOLERANCE, name
        assert runtime.grad_norm() <= 1e-2 + TOLERANCE, name
        for stage, module in runtime.modules.items():
            for p, q in zip(module.parameters(), model[stage].parameters()):
                assert (p.grad is None) == (q.grad is None)
                if p.grad is not None:
                    torch.testing.assert_close(p.grad, q.grad, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m: f"{name}: {m}")
        with pytest.raises(chimera.Error, match="`max_norm` is 0: choose a number above 0"):
            runtime.clip_grad_norm_(0)


def seeded():
    """Replicas that were made with other weights have those of the first."""
    program = chimera.schedule("chimera", depth=2, micro_batches=4).lower()
    runtime = pytorch_runtime(program, lambda s: Part(s, seed=10 * dist.get_rank()), MSE)
    return {f"{s}.{n}": p.detach() for s, module in runtime.modules.items() for n, p in module.named_parameters()}


def refused():
    def says(text, timetable, lowered={}, **options):
        with pytest.raises(chimera.Error, match=text):
            pytorch_runtime(timetable.lower(**lowered), options.pop("stages", Part), MSE, **options)

    make = lambda name, **shape: chimera.schedule(name, **{"depth": 2, "micro_batches": 4, **shape})
    plain = make("1f1b")
    rows = [[("F", 0, stage, (0, 1)), ("B", 0, stage, 0), ("B", 0, stage, 1)] for stage in range(2)]
    together = chimera.timetable([[0, 1]], rows)
    says("one version of the weights.*choose a synchronous schedule", make("pipedream"))
    says('cut into 2 .halving.; schedule it with scaling="direct"', make("chimera", micro_batches=8, scaling="halving"))
    says("some on several; make an op for each of them", together)
    says("no recomputation.*torch.utils.checkpoint", plain.passes(recompute="full"))
    says(r"the tied stages \[\[0, 1\]\].*lower without `tied`", plain, lowered={"tied": [[0, 1]]})
    says("the group has 2 ranks and the program 4 workers", make("1f1b", depth=4))
    says("ranks have different programs", make(["1f1b", "gpipe"][dist.get_rank()]))
    says("stage . is in DistributedDataParallel.*fully_shard", plain, stages=lambda s: nn.parallel.DistributedDataParallel(Part(0)))
    runtime = pytorch_runtime(plain.lower(), Part, MSE)
    with pytest.raises(chimera.Error, match="which do not divide into 4 equal parts"):
        runtime.step(*batch(0, 7))
    with pytest.raises(chimera.Error, match="and needs"):
        runtime.step()
    with pytest.raises(chimera.Error, match="is a list, and this runtime takes one tensor"):
        runtime.step([1.0] * 4, [1.0] * 4)


def run_on_two():
    several()
    masked()
    clipped()
    refused()
    return seeded()


def test_options_on_two_ranks():
    first, second = on_ranks(2, run_on_two)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_torch_is_refused(monkeypatch):
    monkeypatch.delattr(chimera_pipeline.torch, "_replicated", raising=False)
    monkeypatch.delitem(sys.modules, "chimera_pipeline.torch._replicated", raising=False)
    monkeypatch.setitem(sys.modules, "chimera_pipeline.torch._virtual_stages", None)
    with pytest.raises(chimera.Error, match="install torch 2.15, or train with chimera_pipeline.torch.Runtime"):
        chimera_pipeline.torch._pytorch._pytorch_classes()


def sharded(text):
    """Two pipelines side by side, each with half of the batch; FSDP sums over them and shards the weights."""
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "pp"))
    own = slice(120 * mesh["dp"].get_local_rank(), 120 * (mesh["dp"].get_local_rank() + 1))
    program = chimera.parse(text).lower()
    runtime = pytorch_runtime(program, lambda s: fully_shard(Part(s), mesh=mesh["dp"]), MSE, group=mesh["pp"].get_group())
    parameters = {f"{s}.{n}": p for s, module in runtime.modules.items() for n, p in module.named_parameters()}
    assert any(p.to_local().numel() < p.numel() for p in parameters.values())
    optimizer = torch.optim.SGD([p for p in parameters.values() if p.requires_grad], lr=0.1)
    losses = []
    for step in range(4):
        x, y = (tensor[own] for tensor in batch(step))
        losses.append(runtime.evaluate(x, y) if step == 2 else runtime.step(x, y))
        if step < 2:
            optimizer.step()
    grads = {name: p.grad.full_tensor() for name, p in parameters.items() if p.grad is not None}
    return losses, grads, {name: p.detach().full_tensor() for name, p in parameters.items()}, runtime.grad_norm()


def sharded_all(texts):
    return {name: sharded(text) for name, text in texts.items()}


def test_fsdp_shards_beside_it():
    made = {name: timetable(name) for name in ("chimera", "chimera, odd", "zb-v")}
    results = on_ranks(8, sharded_all, {name: each.to_json() for name, each in made.items()})
    for name, each in made.items():
        model = nn.Sequential(*(Part(stage) for stage in range(each.stages)))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            loss = MSE(model(batch(step)[0]), batch(step)[1])
            loss.backward()
            losses.append(loss.item())
            if step < 2:
                optimizer.step()
        weights = {key: p.detach() for key, p in model.named_parameters()}
        grads = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        close = functools.partial(torch.testing.assert_close, rtol=TOLERANCE, atol=TOLERANCE)
        norm = nn.utils.get_total_norm(list(grads.values())).item()
        theirs = [result[name] for result in results]
        assert all(abs(each[3] - norm) < TOLERANCE for each in theirs), name
        close(torch.tensor([each[0] for each in theirs], dtype=torch.float64).mean(0), torch.tensor(losses, dtype=torch.float64))
        for place, wanted in ((1, grads), (2, weights)):
            seen = {}
            for key, tensor in (item for each in theirs for item in each[place].items()):
                close(tensor, wanted[key], msg=lambda m: f"{name}: {key}: {m}")
                # Replicas are equal to the bit.
                assert torch.equal(seen.setdefault(key, tensor), tensor), f"{name}: {key}"
            assert seen.keys() == wanted.keys(), name
