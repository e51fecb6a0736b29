"""Options of a runtime: tied parameters, recomputation, mixed precision, saved weights, and what is refused."""

import copy

import chimera
import pytest

torch = pytest.importorskip("torch")

from chimera.torch import Runtime  # noqa: E402
from chimera.torch._autograd import backward_input  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402

WIDTH = 4
MSE = nn.functional.mse_loss


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def batch(n=8, dtype=torch.float64):
    torch.manual_seed(7)
    return torch.randn(n, WIDTH, dtype=dtype), torch.randn(n, WIDTH, dtype=dtype)


def linear(stage, dtype=torch.float64):
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=dtype), nn.Tanh())


def gradients(runtime):
    return {f"{s}.{n}": p.grad for s, m in runtime.modules.items() for n, p in m.named_parameters()}


class Ends(nn.Module):
    """The first and the last stage, with one matrix in common."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.is_last = stage == 1

    def forward(self, x):
        return x @ (self.matrix.t() if self.is_last else self.matrix)


def tied(schedule):
    program = chimera.schedule(schedule, depth=2, micro_batches=4).lower(tied=[[0, 1]])
    runtime = Runtime(program, Ends, MSE, sgd, tied=[{0: "matrix", 1: "matrix"}])
    losses = [runtime.step(*batch()) for _ in range(2)]
    matrix, (x, y) = Ends(0).matrix, batch()
    for loss in losses:
        whole = MSE(x @ matrix @ matrix.t(), y)
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
    assert all(torch.equal(before[name], after[name]) for name in before)
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


def refused():
    def says(text, **options):
        with pytest.raises(chimera.Error, match=text):
            program = options.pop("program", None) or chimera.schedule("1f1b", depth=2).lower()
            Runtime(program, linear, MSE, sgd, **options).step(*options.pop("given", batch()))

    lower = lambda name, **how: chimera.schedule(name, depth=2, micro_batches=2).lower(**how)
    says("lower with barrier=True", program=lower("pipedream"), clip=1.0)
    says("lower with barrier=True", program=lower("1f1b", barrier=False), clip=1.0)
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
    for check in (recomputed, scaled, mixed, saved, frozen, without_barrier, refused):
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
    dx, add_weight_gradients = backward_input(module(x), dy, x, parameters)
    assert all(parameter.grad is None for parameter in parameters)
    torch.testing.assert_close(dx, whole[0])
    add_weight_gradients()
    for parameter, grad in zip(parameters, whole[1:]):
        torch.testing.assert_close(parameter.grad, grad)


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
        _, add_weight_gradients = backward_input(output, torch.ones_like(output), x, list(layers.parameters()))
        assert Products.count == 10
        add_weight_gradients()
        assert Products.count == 15
