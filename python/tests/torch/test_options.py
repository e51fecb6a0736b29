"""Options of a runtime: tied and frozen parameters, recomputation, mixed precision, saved weights, and what is refused."""

import copy

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

from chimera_pipeline.torch import Runtime  # noqa: E402
from chimera_pipeline.torch._autograd import backward, backward_input  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, batch, linear, sgd  # noqa: E402


def gradients(runtime):
    return {f"{s}.{n}": p.grad for s, m in runtime.modules.items() for n, p in m.named_parameters()}


class Ends(nn.Module):
    """The first and the last stage, with one matrix in common, and buffers of their own: one and two."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.is_last = stage == 1
        self.register_buffer("scale", torch.tensor(1 / (1 + stage), dtype=torch.float64))
        if self.is_last:
            self.register_buffer("shift", torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x):
        return x @ self.matrix.t() * self.scale + self.shift if self.is_last else x @ self.matrix * self.scale


def tied(schedule):
    program = chimera.schedule(schedule, depth=2, micro_batches=4).lower(tied=[[0, 1]])
    runtime = Runtime(program, Ends, MSE, sgd, tied=[{0: "matrix", 1: "matrix"}])
    for stage, module in runtime.modules.items():
        assert module.scale == Ends(stage).scale
    losses = [runtime.step(*batch()) for _ in range(2)]
    matrix, (x, y) = Ends(0).matrix, batch()
    for loss in losses:
        whole = MSE(x @ matrix @ matrix.t() / 2 + 1, y)
        assert abs(loss - whole.item()) < 1e-12
        (grad,) = torch.autograd.grad(whole, [matrix])
        matrix = (matrix - 0.1 * grad).detach().requires_grad_()
    assert abs(runtime.last.grad_norm - grad.norm().item()) < 1e-12
    for module in runtime.modules.values():
        torch.testing.assert_close(module.matrix, matrix, rtol=1e-12, atol=1e-12)


def dropped(stage):
    return nn.Sequential(linear(stage), nn.Dropout(0.5))


def recomputed():
    def run(timetable):
        torch.manual_seed(3)
        runtime = Runtime(timetable.lower(), dropped, MSE, sgd)
        return runtime.step(*batch()), gradients(runtime)

    plain = chimera.schedule("chimera", depth=2, micro_batches=4)
    (loss, grads), (again, others) = run(plain), run(plain.passes(recompute="full"))
    assert loss == again
    assert all(torch.equal(grads[name], others[name]) for name in grads)


def scaled():
    program = chimera.schedule("1f1b", depth=2, micro_batches=4).lower()
    plain = Runtime(program, linear, MSE, sgd, clip=0.01)
    scaled = Runtime(program, linear, MSE, sgd, clip=0.01, loss_scale=1024)
    assert plain.step(*batch()) == scaled.step(*batch())
    assert plain.last == pytest.approx(scaled.last, rel=1e-12)
    for name, grad in gradients(plain).items():
        torch.testing.assert_close(gradients(scaled)[name], grad, rtol=1e-12, atol=1e-12)


def mixed():
    program = chimera.schedule("chimera", depth=2, micro_batches=4).lower()
    half = Runtime(program, lambda s: linear(s, torch.float32), MSE, sgd, autocast=torch.bfloat16, loss_scale="dynamic")
    x, y = batch(dtype=torch.float32)
    whole = MSE(linear(1, torch.float32)(linear(0, torch.float32)(x)), y).item()
    assert abs(half.step(x, y) - whole) < 0.02
    assert all(grad.dtype == torch.float32 for grad in gradients(half).values())
    before = half.state_dict()
    half.step(x * float("nan"), y)
    assert half.last.is_skipped
    after = half.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("loss_scale"))
    half.step(x, y)
    assert not half.last.is_skipped


def saved():
    program = chimera.schedule("chimera", depth=2, micro_batches=4).lower()
    runtime = Runtime(program, linear, MSE, sgd)
    runtime.step(*batch())
    loss, state = runtime.evaluate(*batch()), [runtime.state_dict()]
    torch.distributed.broadcast_object_list(state)
    other = Runtime(chimera.schedule("1f1b", depth=2, micro_batches=2).lower(), linear, MSE, sgd)
    assert abs(other.evaluate(*batch()) - loss) > 1e-6
    other.load_state_dict(state[0])
    assert abs(other.evaluate(*batch()) - loss) < 1e-12


def state_of(runtime):
    """What `state_dict` returns on rank 0, on every rank."""
    state = [runtime.state_dict()]
    torch.distributed.broadcast_object_list(state)
    return state[0]


def scale_saved():
    """A training that goes on scales losses as it did; a state of before the scale was saved begins anew."""
    program, (x, y) = chimera.schedule("chimera", depth=2, micro_batches=4).lower(), batch(dtype=torch.float32)
    make = lambda scale="dynamic": Runtime(program, lambda s: linear(s, torch.float32), MSE, sgd, loss_scale=scale)
    scale_of = lambda state: (state["loss_scale"].item(), state["loss_scale.good_steps"].item())
    runtime, other = make(), make()
    for given in (x * float("nan"), x * float("nan"), x):
        runtime.step(given, y)
    state = state_of(runtime)
    assert scale_of(state) == (16384, 1)
    other.load_state_dict(state)
    assert scale_of(state_of(other)) == (16384, 1)
    other.step(x * float("nan"), y)
    assert scale_of(state_of(other)) == (8192, 0)
    older = {name: tensor for name, tensor in state.items() if not name.startswith("loss_scale")}
    other.load_state_dict(older)
    assert scale_of(state_of(other)) == (65536, 0)
    for wrong in (float("nan"), 0.5, [1, 2]):
        with pytest.raises(chimera.Error, match="the state has the loss scale"):
            other.load_state_dict({**older, "loss_scale": torch.tensor(wrong)})
    fixed = make(1024)
    fixed.load_state_dict(state)
    assert state_of(fixed).keys() == older.keys()
    with pytest.raises(chimera.Error, match="the state has no tensors"):
        fixed.load_state_dict({"loss_scale": torch.tensor(1.0)})


def frozen():
    def stage(s):
        module = linear(s)
        for parameter in module.parameters():
            parameter.requires_grad_(s == 1)
        return module

    for schedule in ("1f1b", "zb-h1"):
        runtime = Runtime(chimera.schedule(schedule, depth=2, micro_batches=4).lower(), stage, MSE, sgd)
        runtime.step(*batch())
        assert runtime.last.grad_norm > 0
        assert torch.equal(runtime.state_dict().get("0.0.weight", linear(0)[0].weight), linear(0)[0].weight)


class Seeded(nn.Module):
    """A trained weight, a frozen one and a buffer."""

    def __init__(self, stage, seed):
        super().__init__()
        torch.manual_seed(stage + 10 * seed)
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.frozen = nn.Parameter(torch.rand(WIDTH, dtype=torch.float64), requires_grad=False)
        self.register_buffer("shift", torch.rand(WIDTH, dtype=torch.float64))

    def forward(self, x):
        return self.linear(x).tanh() * self.frozen + self.shift


def replicas():
    """Modules that ranks make with other weights have those of the first, frozen ones and buffers too."""
    rank = torch.distributed.get_rank()
    for schedule, depth in (("chimera", 2), ("1f1b", 1)):
        program = chimera.schedule(schedule, depth=depth, micro_batches=4).lower()
        runtime = Runtime(program, lambda s: Seeded(s, seed=rank), MSE, sgd)
        for stage, module in runtime.modules.items():
            for name, tensor in Seeded(stage, seed=0).state_dict().items():
                assert torch.equal(module.state_dict()[name], tensor), f"{schedule}: {stage}.{name}"
        whole = nn.Sequential(*(Seeded(stage, seed=0) for stage in range(depth)))
        assert abs(runtime.step(*batch()) - MSE(whole(batch()[0]), batch()[1]).item()) < 1e-12


class Constant(nn.Module):
    """A stage whose output is a weight of its own, not made from its input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), 0.5, dtype=torch.float64))

    def forward(self, x):
        return self.weight.expand_as(x)


def passed_on():
    """Stages before one that returns its input, or a view of it, train under split backwards as under whole ones."""
    middles = {"itself": nn.Identity, "flattened": nn.Flatten, "a view": lambda: nn.Unflatten(1, (2, -1)), "other": Constant}
    for name, middle in middles.items():
        losses, grads = [], []
        for is_split in (False, True):
            parts = [lambda: linear(0), middle, middle, lambda: nn.Sequential(nn.Flatten(), linear(3))]
            timetable = chimera.schedule("interleaved", depth=2, micro_batches=4).passes(split_backward=is_split)
            runtime = Runtime(timetable.lower(), lambda s: parts[s](), MSE, sgd)
            losses.append(runtime.step(*batch()))
            grads.append(gradients(runtime))
        assert losses[0] == losses[1], name
        for key, grad in grads[0].items():
            torch.testing.assert_close(grads[1][key], grad, rtol=1e-12, atol=1e-12, msg=lambda m: f"{name}: {key}: {m}")
            assert grad.norm() > 0 or name == "other", f"{name}: {key}"


def refused():
    def says(text, **options):
        with pytest.raises(chimera.Error, match=text):
            program = options.pop("program", None) or chimera.schedule("1f1b", depth=2).lower()
            Runtime(program, linear, MSE, sgd, **options).step(*options.pop("given", batch()))

    lower = lambda name, **how: chimera.schedule(name, depth=2, micro_batches=2).lower(**how)
    says("leave `clip` out, or choose a synchronous schedule", program=lower("pipedream"), clip=1.0)
    for schedule in ("timeprest", "pipeoptim"):
        says("choose another schedule, such as pipedream", program=lower(schedule))
    says("leave `loss_scale` out, or choose a synchronous schedule", program=lower("pipedream-2bw"), loss_scale="dynamic")
    says("lower with barrier=True, or leave `clip` out", program=lower("1f1b", barrier=False), clip=1.0)
    says("2 ranks do not make groups of 4 workers", program=chimera.schedule("1f1b").lower())
    says("the program ties the stages", tied=[{0: "0.weight", 1: "0.weight"}])
    rank = torch.distributed.get_rank()
    says("ranks have different programs", program=lower(["1f1b", "gpipe"][rank], sync=["eager", "at-end"][rank]))
    runtime = Runtime(chimera.schedule("1f1b", depth=2).lower(), linear, MSE, sgd)
    with pytest.raises(chimera.Error, match="which do not divide into 2 equal parts"):
        runtime.step(*batch(7))
    with pytest.raises(chimera.Error, match="and needs"):
        runtime.step()


def without_barrier():
    program = chimera.schedule("chimera", depth=2, micro_batches=4).lower(barrier=False)
    runtimes = [Runtime(p, linear, MSE, sgd) for p in (program, chimera.schedule("chimera", depth=2, micro_batches=4).lower())]
    for _ in range(2):
        losses = {runtime.step(*batch()) for runtime in runtimes}
        assert len(losses) == 1


def steep_at_end(output, target):
    """A loss whose value is finite; its gradient is not where a target is 100."""
    return MSE(output, target) + ((target != 100).all() * output.square().sum()).sqrt()


def not_finite():
    """Without the barrier weights have changed by the time that all ranks know, so that every rank says it."""
    programs = {
        "lower with barrier=True": chimera.schedule("chimera", depth=2, micro_batches=4).lower(barrier=False),
        "choose a synchronous schedule": chimera.schedule("pipedream-2bw", depth=2, micro_batches=2, window=4).lower(),
    }
    for advice, program in programs.items():
        runtime = Runtime(program, linear, steep_at_end, sgd)
        state = [runtime.state_dict()]
        torch.distributed.broadcast_object_list(state)
        x, y = batch(16)
        for spoil in (0, 11, 15):
            # Of the window's four updates, each of 4 samples, it is the first, the last but one, and the last.
            given = torch.where(torch.arange(16)[:, None] == spoil, 100.0, y)
            with pytest.raises(chimera.Error, match=f"not finite.*weights were updated by it.*{advice}"):
                runtime.step(x, given)
            assert not runtime.last.is_skipped
            assert any(p.isnan().any() for module in runtime.modules.values() for p in module.parameters())
            runtime.load_state_dict(state[0])
        runtime.step(x, y)
        with pytest.raises(chimera.Error, match="loss nan"):
            runtime.step(x * float("nan"), y)


def stale(schedule, passes):
    """Each update is that of the gradient at the weights that the schedule's formula names."""
    n, window = 4, 3
    timetable = chimera.schedule(schedule, depth=2, micro_batches=n, window=window).passes(**passes)
    runtime = Runtime(timetable.lower(), linear, MSE, sgd)
    x, y = batch(n * window * 2)
    loss = runtime.step(x, y)
    is_stash = schedule == "pipedream"
    n_updates = n * window if is_stash else window
    versions, losses = [[linear(stage) for stage in range(2)]], []
    for update, (inputs, targets) in enumerate(zip(x.chunk(n_updates), y.chunk(n_updates))):
        read = [max(0, update - (1 - stage) if is_stash else update - 1) for stage in range(2)]
        parts = [copy.deepcopy(versions[version][stage]) for stage, version in enumerate(read)]
        one = MSE(parts[1](parts[0](inputs)), targets)
        one.backward()
        losses.append(one.item())
        versions.append(copy.deepcopy(versions[-1]))
        for part, made in zip(parts, versions[-1]):
            for p, q in zip(made.parameters(), part.parameters()):
                p.data -= 0.1 * q.grad
    assert abs(loss - sum(losses) / n_updates) < 1e-12
    for stage, module in runtime.modules.items():
        for p, q in zip(module.parameters(), versions[-1][stage].parameters()):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def run_all():
    for schedule in ("pipedream", "pipedream-2bw"):
        for passes in ({}, {"recompute": "full"}, {"split_backward": True}):
            stale(schedule, passes)

    for schedule in ("1f1b", "chimera"):
        tied(schedule)
    for check in (recomputed, scaled, mixed, saved, scale_saved, frozen, replicas, passed_on, without_barrier, not_finite, refused):
        check()


def test_options_on_two_ranks():
    on_ranks(2, run_all)


def test_the_halves_of_a_backward_are_the_whole():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.scale = nn.Parameter(torch.rand(()))

        def forward(self, x):
            y = self.a(x) * self.scale
            return self.b(self.a(y).tanh()) + self.scale * x + self.b.weight.sum()

    torch.manual_seed(1)
    module = Shared().double()
    x = torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(3, WIDTH, dtype=torch.float64)
    parameters = list(module.parameters())
    whole = torch.autograd.grad(module(x), [x, *parameters], dy)
    (dx,), add_weight_gradients = backward_input([(module(x), dy)], [x], parameters)
    assert all(parameter.grad is None for parameter in parameters)
    torch.testing.assert_close(dx, whole[0])
    add_weight_gradients()
    for parameter, grad in zip(parameters, whole[1:]):
        torch.testing.assert_close(parameter.grad, grad)


MIDDLES = {
    "its input": lambda x, weight: x,
    "its input, flattened already": lambda x, weight: x.flatten(1),
    "a view of its input": lambda x, weight: x.view(-1, WIDTH),
    "its input without its graph": lambda x, weight: x.detach(),
    "a weight": lambda x, weight: weight,
    "what is made of a weight alone": lambda x, weight: weight * weight,
    "a weight and its input": lambda x, weight: weight + x,
}


@pytest.mark.parametrize("function", MIDDLES.values(), ids=MIDDLES)
def test_the_halves_are_the_whole_of_a_stage_that_returns(function):
    x, weight, dy = (torch.randn(3, WIDTH, dtype=torch.float64) for _ in range(3))
    whole, halves = ([x.clone().requires_grad_(), weight.clone().requires_grad_()] for _ in range(2))
    (wanted,) = backward([(function(*whole), dy)], whole[:1])
    (dx,), add_weight_gradients = backward_input([(function(*halves), dy)], halves[:1], halves[1:])
    assert halves[1].grad is None
    assert torch.equal(dx, wanted)
    add_weight_gradients()
    assert (halves[1].grad is None) == (whole[1].grad is None)
    assert halves[1].grad is None or torch.equal(halves[1].grad, whole[1].grad)


def test_no_half_computes_what_the_other_does():
    """A linear layer has three matrix products: one forward, one for its input, one for its weight."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Products.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return function(*args, **(kwargs or {}))

    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)))
    x = torch.randn(3, WIDTH, requires_grad=True)
    with Products():
        output = layers(x)
        assert Products.count == 5
        _, add_weight_gradients = backward_input([(output, torch.ones_like(output))], [x], list(layers.parameters()))
        assert Products.count == 10
        add_weight_gradients()
        assert Products.count == 15
