"""What stages may be: the gradients, weights and buffers of modules of many kinds are those of the whole model."""

import copy
import functools

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import Runtime, pytorch_runtime  # noqa: E402
from chimera_pipeline.torch._autograd import backward, backward_input  # noqa: E402
from chimera_pipeline.torch._checks import evaluating  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, batch, linear, sgd  # noqa: E402

close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def adamw(parameters):
    """An optimizer that changes a weight whose gradient is zeros, and leaves one alone that has none."""
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)


def timetable(name="1f1b", micro_batches=4, **options):
    return chimera.schedule(name, depth=2, micro_batches=micro_batches, **options)


class Part(nn.Module):
    """A linear layer, and what a test adds to it."""

    def __init__(self, stage):
        super().__init__()
        self.linear = linear(stage)
        self.add(stage)

    def forward(self, x):
        return self.linear(x)


class Frozen(Part):
    """A matrix that is tied and not trained."""

    def add(self, stage):
        self.matrix = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64) + stage, requires_grad=False)

    def forward(self, x):
        return self.linear(x @ self.matrix)


def tied_and_frozen():
    for name in ("1f1b", "chimera"):
        program = timetable(name).lower(tied=[[0, 1]])
        runtime = Runtime(program, Frozen, MSE, adamw, tied=[{0: "matrix", 1: "matrix"}])
        runtime.step(*batch())
        for module in runtime.modules.values():
            assert torch.equal(module.matrix, Frozen(0).matrix), name
            assert not torch.equal(module.linear[0].weight, linear(0)[0].weight)


class Named(Part):
    """A matrix under two names within one stage."""

    def add(self, stage):
        self.matrix = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))
        self.again = self.matrix

    def forward(self, x):
        return self.linear(x @ self.matrix) @ self.again


def tied_under_two_names():
    rows = [[(kind, 0, stage, 0) for kind, stages in (("F", (0, 1)), ("B", (1, 0))) for stage in stages], []]
    on_one = chimera.timetable([[0, 0]], rows[:1])
    own = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    for program, group in ((timetable().lower(tied=[[0, 1]]), None), (on_one.lower(tied=[[0, 1]]), own)):
        runtime = Runtime(program, Named, MSE, adamw, tied=[{0: "again", 1: "matrix"}], group=group)
        runtime.step(*batch())
        whole = nn.Sequential(Named(0), Named(1))
        whole[1].matrix = whole[1].again = whole[0].matrix
        optimizer = adamw(whole.parameters())
        MSE(whole(batch()[0]), batch()[1]).backward()
        optimizer.step()
        for stage, module in runtime.modules.items():
            for name, tensor in whole[stage].state_dict().items():
                close(module.state_dict()[name], tensor)


class Seldom(Part):
    """A weight that the first samples of the batch alone read."""

    def add(self, stage):
        self.seldom = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x):
        y = self.linear(x)
        return y * self.seldom if (x[:, 0] > 50).all() else y


class Unused(Seldom):
    """A weight that no forward reads beside it."""

    def add(self, stage):
        super().add(stage)
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))


def unused():
    x, y = batch()
    x[:2, 0] = 100
    for name in ("1f1b", "chimera"):
        runtime = Runtime(timetable(name).lower(), Unused, MSE, adamw, clip=0.01)
        runtime.step(x, y)
        for stage, module in runtime.modules.items():
            assert torch.equal(module.unused, torch.ones_like(module.unused)) and module.unused.grad is None, name
            # With two pipes one replica computes these samples, and both update by them.
            assert (module.seldom.grad is not None) == (stage == 0), name
            assert torch.equal(module.seldom, Unused(0).seldom) == (stage == 1), name
        if name == "chimera":
            runtime = pytorch_runtime(timetable(name).lower(), Unused, MSE)
            runtime.step(x, y)
            for stage, module in runtime.modules.items():
                assert module.unused.grad is None and (module.seldom.grad is not None) == (stage == 0)


def seldom_in_windows():
    """An update has the gradients of its own micro-batches alone: what only the first of a window reads is updated once."""
    for name in ("pipedream", "pipedream-2bw"):
        runtime = Runtime(timetable(name).lower(), Seldom, MSE, sgd)
        assert runtime._n_updates > 1, name
        x, y = batch(runtime._n_units)
        x[0, 0] = 100
        runtime.step(x, y)
        for stage, module in runtime.modules.items():
            assert module.seldom.grad is None and torch.equal(module.seldom, Seldom(0).seldom) == (stage == 1), name


class Twice(Part):
    """Two weights to which autograd hands one tensor as their gradient, and one whose gradient has no memory of its own."""

    def add(self, stage):
        self.a, self.b, self.c = (nn.Parameter(torch.ones(8, WIDTH, dtype=torch.float64)) for _ in range(3))

    def forward(self, x):
        return self.linear(x) + self.a + self.b + self.c.sum()


def clipped_after_a_split():
    grads = []
    for is_split in (False, True):
        program = timetable(micro_batches=1).passes(split_backward=is_split).lower()
        runtime = Runtime(program, Twice, MSE, sgd, clip=0.01)
        runtime.step(*batch())
        grads.append([p.grad for module in runtime.modules.values() for p in module.parameters()])
    close(grads[1], grads[0])


class Normed(Part):
    """A batch norm, and buffers of types that few backends send."""

    def add(self, stage):
        self.norm = nn.BatchNorm1d(WIDTH, dtype=torch.float64)
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool))
        self.register_buffer("short", torch.full((), dist.get_rank(), dtype=torch.int16))
        self.register_buffer("complex", torch.full((2,), dist.get_rank(), dtype=torch.complex64))
        self.register_buffer("turned", torch.full((3, 2), float(dist.get_rank())).T)
        self.register_buffer("empty", torch.ones(0))

    def forward(self, x):
        return self.linear(self.norm(x) * self.mask)


def everywhere(runtime):
    """The tensors of stage 0 on all ranks that hold it."""
    states = [None, None]
    dist.all_gather_object(states, {s: module.state_dict() for s, module in runtime.modules.items()})
    return [state[0] for state in states if 0 in state]


def batch_norms():
    x, y = batch()
    program = timetable("chimera").lower()
    for runtime in (Runtime(program, Normed, MSE, sgd), pytorch_runtime(program, Normed, MSE)):
        runtime.step(x, y)
        first, second = everywhere(runtime)
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        assert first["norm.num_batches_tracked"] >= 2 and first["short"] == 0
    runtime = Runtime(program, Normed, MSE, sgd, broadcast_buffers=False)
    runtime.step(x, y)
    first, second = everywhere(runtime)
    assert not torch.equal(first["norm.running_mean"], second["norm.running_mean"])
    states, grads = [], []
    for recompute in ("none", "full"):
        runtime = Runtime(timetable().passes(recompute=recompute).lower(), Normed, MSE, sgd)
        runtime.step(x, y)
        (module,) = runtime.modules.values()
        assert module.norm.num_batches_tracked == 4, "a recomputation changes no statistics"
        states.append(module.state_dict())
        grads.append([p.grad for p in module.parameters()])
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    close(grads[1], grads[0])


class Shifting(Part):
    """A first stage that changes its input in place."""

    def add(self, stage):
        self.is_first = stage == 0

    def forward(self, x):
        return self.linear(x.sub_(1) if self.is_first else x)


def in_place():
    x, y = batch()
    wanted = MSE(nn.Sequential(linear(0), linear(1))(x - 1), y).item()
    assert abs(Runtime(timetable().lower(), Shifting, MSE, sgd).step(x.clone(), y) - wanted) < 1e-12
    own = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    alone = chimera.schedule("1f1b", depth=1, micro_batches=4).passes(recompute="full").lower()
    with pytest.raises(chimera.Error, match="stage 0 changes its input in place.*inplace=False"):
        Runtime(alone, Shifting, MSE, sgd, group=own).step(x.clone(), y)


class Turned(Part):
    """A weight whose memory is not in order."""

    def add(self, stage):
        torch.manual_seed(stage + 10 * dist.get_rank())
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64).T)

    def forward(self, x):
        return self.linear(x) @ self.weight


def not_contiguous():
    runtime = Runtime(timetable("chimera").lower(), Turned, MSE, sgd)
    runtime.step(*batch())
    first, second = everywhere(runtime)
    assert torch.equal(first["weight"], second["weight"])


class Copying(torch.optim.SGD):
    """An optimizer that copies the weights that it is given."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.copies = [parameter.detach().clone() for parameter in parameters]


def optimizers_see_the_weights_of_the_first():
    runtime = Runtime(timetable("chimera").lower(), Turned, MSE, Copying)
    copies = [copied for optimizer in runtime.optimizers for copied in optimizer.copies]
    weights = [p for module in runtime.modules.values() for p in module.parameters()]
    assert all(any(torch.equal(copied, weight) for copied in copies) for weight in weights)


def run_all():
    for check in (tied_and_frozen, tied_under_two_names, unused, seldom_in_windows, clipped_after_a_split, batch_norms, in_place, not_contiguous):
        check()
    optimizers_see_the_weights_of_the_first()


def test_modules_of_many_kinds_on_two_ranks():
    on_ranks(2, run_all)


MAKERS = (
    lambda program, group: Runtime(program, linear, MSE, sgd, group=group),
    lambda program, group: pytorch_runtime(program, linear, MSE, group=group),
)


def side_by_side():
    """Pipelines in groups of their own, of which one takes a step that the other does not."""
    group, results = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2], []
    for name in ("chimera", "1f1b"):
        for make in MAKERS:
            runtime = make(timetable(name).lower(), group)
            results += [runtime.step(*batch())] if dist.get_rank() > 1 or name == "chimera" else []
    return results


def uneven():
    """Replicas in sets of which two have a rank in common, without a rank that is in no pipeline."""
    group = [dist.new_group([0, 1, 2]), dist.new_group([3])][dist.get_rank() // 3]
    rows = [[(kind, pipe, stage, pipe)] for kind, stage in (("F", 0), ("B", 0), ("F", 1), ("B", 1)) for pipe in (0, 1)]
    rows = [rows[0] + rows[2], rows[4] + rows[6] + rows[1] + rows[3], rows[5] + rows[7]]
    program = chimera.timetable([[0, 1], [1, 2]], rows).lower()
    return [make(program, group).step(*batch()) for make in MAKERS if dist.get_rank() < 3]


@pytest.mark.parametrize("function", [side_by_side, uneven])
def test_pipelines_in_groups_of_their_own(function):
    wanted = MSE(nn.Sequential(linear(0), linear(1))(batch()[0]), batch()[1]).item()
    results = on_ranks(4, function)
    assert [len(of_rank) for of_rank in results] == ([2, 2, 4, 4] if function is side_by_side else [2, 2, 2, 0])
    assert all(abs(loss - wanted) < 1e-12 for of_rank in results for loss in of_rank if loss is not None)


def test_a_split_gives_each_parameter_a_gradient_of_its_own():
    x, a, b, dy = (torch.randn(3, WIDTH, dtype=torch.float64) for _ in range(4))
    for tensor in (x, a, b):
        tensor.requires_grad_()
    (dx,), add_weight_gradients = backward_input([(x + a + b + a.sum(), dy)], [x], [a, b])
    add_weight_gradients()
    wanted = [a.grad.clone(), b.grad.clone(), dx.clone(), dy.clone()]
    a.grad.mul_(2)
    b.grad.mul_(3)
    close([a.grad / 2, b.grad / 3, dx, dy], wanted)


def test_hooks_behind_the_accumulation_run_in_a_split_too():
    calls = {}
    for is_split in (False, True):
        module, x, dy = linear(0), *batch()
        for name, parameter in module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: calls.setdefault(is_split, []).append((name, p.grad.clone())))
        x.requires_grad_()
        if is_split:
            backward_input([(module(x), dy)], [x], module.parameters())[1]()
        else:
            backward([(module(x), dy)], [x])
    assert {name for name, _ in calls[True]} == {"0.weight", "0.bias"}
    close(dict(calls[True]), dict(calls[False]))


def test_evaluation_leaves_each_part_in_its_mode():
    module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(WIDTH))
    module[1].eval()
    before = copy.deepcopy([part.training for part in module.modules()])
    with evaluating([module]):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == before == [True, True, False]
