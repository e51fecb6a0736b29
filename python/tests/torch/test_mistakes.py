"""Mistakes are told in words, on all ranks that would wait otherwise, and before they spoil weights."""

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import Runtime, pytorch_runtime  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, batch, linear, sgd  # noqa: E402


def program(name="1f1b", depth=2, **options):
    return chimera.schedule(name, depth=depth, micro_batches=4).lower(**options)


def says(text, call):
    with pytest.raises(chimera.Error, match=text):
        call()


class Returns(nn.Module):
    """A linear layer whose output a function changes."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = linear(0), function

    def forward(self, x):
        return self.function(self.linear(x))


def alone():
    """Mistakes of one rank by itself."""
    own = [dist.new_group([rank]) for rank in range(2)]
    group, other = own[dist.get_rank()], own[1 - dist.get_rank()]
    one, (x, y) = program(depth=1), batch()

    def make(stages=linear, loss_fn=MSE, program=one, **options):
        return Runtime(program, stages, loss_fn, sgd, group=group, **options)

    for batch_, words in (
        (x.tolist(), "`x` is a list, which stands for micro-batches one by one, and has 8 of 4: give as many"),
        ([1.0] * 4, "`x` is a list, which stands for micro-batches one by one, and a float is none"),
        ((x, {1}), "`x` has a set within a tuple: hand on tensors, numbers, strings and None"),
        ((x, y[:4]), "tensors of `x` have 8 and 4 samples: give each as many"),
        ({"a": x}, "the first stage takes no `a`: its `forward` has input"),
        (torch.ones(()), "`x` is a single number"),
        (x[:7], "7 samples, which do not divide into 4 equal parts: give a multiple of 4"),
        (None, "needs `x`: give it the batch of its group"),
    ):
        says(words, lambda: make().step(batch_, y))
    says("`x` is a list.*or a tuple of tensors", lambda: pytorch_runtime(one, linear, MSE, group=group).step([x], y))

    rows = [[("F", 0, 0, 0), ("F", 0, 1, 0), ("B", 0, 1, 0), ("B", 0, 0, 0)]]
    two = chimera.timetable([[0, 0]], rows).lower()
    returns = lambda function: make(lambda s: Returns(function if s == 0 else lambda x: x), program=two).step(x, y)
    says("stage 0 returned a Returns within a tuple: hand on tensors", lambda: returns(lambda x: (x, Returns(None))))
    says("stage 0 returned no tensor of a floating-point type, through which no gradient", lambda: returns(lambda x: (x.long(), 1)))
    says("stage 0 returned a tensor of torch.int64, through which no gradient", lambda: returns(lambda x: x.long()))
    # A number that is complex has a gradient.
    complex_to_real = lambda s: Returns((lambda x: torch.complex(x, x)) if s == 0 else (lambda x: x))
    whole = lambda z: linear(0)(z.real + z.imag)
    make(lambda s: complex_to_real(0) if s == 0 else Complex(whole), program=two).step(x, y)

    for loss, words in (
        (lambda output, target: MSE(output, target).item(), "`loss_fn` returned a float.*without `.item"),
        (lambda output, target: None, "`loss_fn` returned a NoneType"),
        (lambda output, target: MSE(output, target, reduction="none"), r"a tensor of shape \[2, 4\].*reduction="),
        (lambda output, target: MSE(output, target).detach(), "the loss has no gradient"),
        (lambda output, target: MSE(output.detach(), target), "the loss has no gradient"),
    ):
        says(words, lambda: make(loss_fn=loss).step(x, y))
    make(loss_fn=lambda output, target: MSE(output, target).reshape(1, 1)).step(x, y)

    says("`loss_scale` is 'dynamc': choose a number above 0, or", lambda: make(loss_scale="dynamc"))
    says("`loss_scale` is 0", lambda: make(loss_scale=0))
    says("`clip` is -1: choose a number above 0", lambda: make(clip=-1))
    says("`autocast` is True: choose torch.bfloat16", lambda: make(autocast=True))
    says(r"`stages\(0\)` returned a function: return an nn.Module", lambda: make(lambda s: (lambda x: x)))
    wrapped = lambda s: nn.Sequential(nn.parallel.DistributedDataParallel(linear(s), process_group=group))
    says("stage 0 is in DistributedDataParallel.*give the module itself", lambda: make(wrapped))
    says("stage 0 is in DistributedDataParallel.*fully_shard", lambda: pytorch_runtime(one, wrapped, MSE, group=group))
    synchronized = lambda s: nn.Sequential(linear(s), nn.Sequential(nn.SyncBatchNorm(WIDTH)))
    words = "`1.0` of stage 0 is a SyncBatchNorm.*give it a BatchNorm .without convert_sync_batchnorm., a GroupNorm or a LayerNorm"
    says(words, lambda: make(synchronized))
    says(words, lambda: pytorch_runtime(one, synchronized, MSE, group=group))
    says("`SyncBatchNorm` of stage 0 is", lambda: make(lambda s: nn.SyncBatchNorm(WIDTH)))
    says("is not in `group`", lambda: Runtime(one, linear, MSE, sgd, group=other))
    sparse = lambda s: nn.Sequential(nn.Embedding(9, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH))
    says("a gradient is sparse.*sparse=False", lambda: make(sparse).step(torch.arange(8), y.float()))

    hooked = linear(0)
    hooked[0].weight.register_hook(lambda grad: grad * 2)
    accumulated = linear(0)
    accumulated[0].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    for name, module in (("0.weight", hooked), ("0.bias", accumulated)):
        words = f"`{name}` of stage 0 has a hook, and an asynchronous schedule.*choose a synchronous schedule"
        says(words, lambda: make(lambda s: module, program=program("pipedream-2bw", depth=1)))
        make(lambda s: module).step(x, y)
    in_place = lambda s: nn.Sequential(*[nn.ReLU(inplace=True)] * s, linear(s))
    says(r"stage 1 changes a tensor in place.*\(inplace=False\)", lambda: make(in_place, program=two).step(x, y))

    for optimizer, words in (
        (lambda ps: None, "`optimizer` returned a NoneType: return an optimizer, such as torch.optim.AdamW"),
        (lambda ps: sgd([nn.Parameter(x)]), "`optimizer` returned a SGD of other parameters"),
        (lambda ps: sgd([*ps, nn.Parameter(x)]), "`optimizer` returned a SGD of other parameters"),
        (lambda ps: sgd([{"params": []}]), "`optimizer` returned a SGD of no parameters"),
    ):
        says(words, lambda: Runtime(one, linear, MSE, optimizer, group=group))
    Runtime(one, linear, MSE, lambda ps: sgd(ps[:1]), group=group).step(x, y)

    shared = linear(0)
    words = r"stages 0 and 1 have a parameter in common, `0.weight` and `0.weight`: lower with tied=\[\[0, 1\]\]"
    says(words, lambda: make(lambda s: shared, program=two))
    says("have a parameter in common", lambda: pytorch_runtime(two, lambda s: shared, MSE, group=group))
    says("the program ties the stages", lambda: make(program=chimera.timetable([[0, 0]], rows).lower(tied=[[0, 1]])))
    says("stage 0 has no parameter `weight`, which `tied` names: choose one of 0.weight, 0.bias", lambda: make(
        program=chimera.timetable([[0, 0]], rows).lower(tied=[[0, 1]]), tied=[{0: "weight", 1: "0.weight"}]
    ))
    says(r"tied parameters differ: `0.weight` of stage 0 is trained, \[4, 4\].*`0.bias` of stage 1 is trained, \[4\]", lambda: make(
        program=chimera.timetable([[0, 0]], rows).lower(tied=[[0, 1]]), tied=[{0: "0.weight", 1: "0.bias"}]
    ))

    runtime = make()
    weight = runtime.modules[0][0].weight.detach().clone()
    with torch.no_grad():
        says("gradients are off here", lambda: runtime.step(x, y))
    with torch.inference_mode():
        says("gradients are off here", lambda: runtime.step(x, y))
        runtime.evaluate(x, y)
    assert torch.equal(runtime.modules[0][0].weight, weight)
    state = runtime.state_dict()
    says("the state has no tensors, and the program stages 0 to 0", lambda: runtime.load_state_dict({}))
    says("the state has tensors of stage 1", lambda: runtime.load_state_dict({**state, "1.0.weight": weight}))

    says("the batch has another number of samples in each of `x` 8, `target` 4: give all as many", lambda: make().step(x, y[:4]))
    says("`normalize` is 'token': choose", lambda: make(normalize="token"))
    says("updates weights while.*`normalize` counts the whole", lambda: make(program=program("pipedream", depth=1), normalize="tokens"))
    none = torch.full((8,), -100)
    says("the whole batch has no token that counts", lambda: make(normalize="tokens").step(x, none))


class Complex(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, z):
        assert z.requires_grad
        return self.function(z) * self.scale


def on_both():
    """Mistakes of one rank that both are told."""
    rank = dist.get_rank()
    x, y = batch()

    def fails(stage):
        if rank == 1:
            raise RuntimeError("no such file")
        return linear(stage)

    with pytest.raises(RuntimeError if rank == 1 else chimera.Error, match="no such file"):
        Runtime(program(), fails, MSE, sgd)
    with pytest.raises(RuntimeError if rank == 1 else chimera.Error, match="no such file"):
        pytorch_runtime(program(), fails, MSE)
    lazy = lambda stage: linear(stage) if rank == 0 else nn.LazyLinear(WIDTH)
    with pytest.raises(RuntimeError if rank == 1 else chimera.Error, match="uninitialized"):
        Runtime(program(), lazy, MSE, sgd)

    def no_optimizer(parameters):
        return sgd(parameters) if rank == 0 else fails(1)

    with pytest.raises(RuntimeError if rank == 1 else chimera.Error, match="no such file"):
        Runtime(program("chimera"), linear, MSE, no_optimizer)
    says("ranks have different `clip`: 1.0, 2.0: give every rank the same", lambda: Runtime(program(), linear, MSE, sgd, clip=1.0 + rank))

    def other(stage):
        return linear(stage) if rank == 0 else nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64))

    both = program("chimera")
    for make in (lambda stages: Runtime(both, stages, MSE, sgd), lambda stages: pytorch_runtime(both, stages, MSE)):
        says("replicas of stage 0 on ranks 0 and 1 of the group differ in 0.bias", lambda: make(other))
        says(
            "replicas of stage 0 differ in `0.weight`: .*float64 on rank 0 of the group and .*float32 on rank 1",
            lambda: make(lambda s: linear(s).to([torch.float64, torch.float32][rank])),
        )
        says(
            "replicas of stage 0 differ in `0.weight`: trained.* and frozen",
            lambda: make(lambda s: linear(s).requires_grad_(rank == 0)),
        )

    square = lambda output, target: output.square().mean()
    for name, barrier in (("chimera", True), ("1f1b", True), ("1f1b", False)):
        depth = 1 if name == "1f1b" else 2
        runtime = Runtime(program(name, depth=depth, barrier=barrier), linear, square, sgd)
        before = runtime.modules[0][0].weight.detach().clone()
        says("batches of 8, 16 samples in `x`, and no weight was updated", lambda: runtime.step(*batch(8 * (1 + rank))))
        assert torch.equal(runtime.modules[0][0].weight, before)
        says("batches of 8, 16 samples", lambda: runtime.evaluate(*batch(8 * (1 + rank))))
        runtime.step(x, y)


def half_way():
    """A step of PyTorch's runtime that fails half way leaves messages behind, which the next must not take for its own."""
    def loss(output, target):
        if output.requires_grad:
            raise RuntimeError("out of memory")
        return MSE(output, target)

    own = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    runtime = pytorch_runtime(program(depth=1), linear, loss, group=own)
    runtime.evaluate(*batch())
    with pytest.raises(RuntimeError, match="out of memory"):
        runtime.step(*batch())
    says("an earlier step of this runtime failed half way", lambda: runtime.step(*batch()))
    says("an earlier step of this runtime failed half way", lambda: runtime.evaluate(*batch()))


class Fails(nn.Module):
    """A stage that fails in its `n`-th forward or backward."""

    def __init__(self, stage, n, where):
        super().__init__()
        self.linear, self.n, self.where = linear(stage), n, where

    def forward(self, x):
        self.n -= self.where == "forward"
        if self.n == 0 and self.where == "forward":
            raise RuntimeError("out of memory")
        y = self.linear(x)
        if self.where == "backward" and y.requires_grad:
            y.register_hook(self.count)
        return y

    def count(self, grad):
        self.n -= 1
        if self.n == 0:
            raise RuntimeError("out of memory")


def failed_on_one():
    """What fails on one rank within a step is raised on all, no weight changes, and the next step goes on."""
    x, y = batch()
    for name, depth in (("1f1b", 4), ("chimera", 4), ("zb-v", 4)):
        made = chimera.schedule(name, depth=depth, micro_batches=4, **({"scaling": "direct"} if name == "chimera" else {})).lower()
        # Each of two replicas has half of the micro-batches.
        n_backward, n_later = (2, 4) if name == "chimera" else (3, 6)
        for stage, n, where, before in ((1, 2, "forward", 0), (2, n_backward, "backward", 0), (3, n_later, "forward", 1), (0, 1, "forward", 0)):
            bad = lambda s: Fails(s, n if s == stage else 0, where)
            runtime = Runtime(made, bad, MSE, sgd)
            for _ in range(before):
                runtime.step(x, y)
            weights = {s: m.linear[0].weight.detach().clone() for s, m in runtime.modules.items()}
            has_failed = stage in runtime.modules
            with pytest.raises((RuntimeError, chimera.Error), match="out of memory"):
                runtime.step(x, y)
                assert not has_failed
            assert all(torch.equal(m.linear[0].weight, weights[s]) for s, m in runtime.modules.items())
            for module in runtime.modules.values():
                module.n = 0
            losses = [runtime.step(x, y), runtime.evaluate(x, y)]
            good = Runtime(made, linear, MSE, sgd)
            for _ in range(before):
                good.step(x, y)
            assert losses == [good.step(x, y), good.evaluate(x, y)], (name, stage, n, where)


def refused_by_one():
    """A batch that one rank alone refuses is raised on all, and so are calls that differ."""
    x, y = batch()
    rank = dist.get_rank()
    runtime = Runtime(program("1f1b", depth=4), linear, MSE, sgd)
    says("`x` has 7 samples", lambda: runtime.step(x[: 7 if rank == 0 else 8], y))
    says("batches of other shapes or types", lambda: runtime.step(x[:, :3] if rank == 1 else x, y))
    says("ranks call different functions", lambda: (runtime.evaluate if rank == 2 else runtime.step)(x, y))
    says("given other keyword arguments", lambda: runtime.step(**({"input": x} if rank == 0 else {}), target=y))
    with torch.set_grad_enabled(rank != 3):
        says("gradients are off here", lambda: runtime.step(x, y))
    runtime.step(x, y)


def wrong_on_all():
    """A batch that is wrong on all ranks raises on those that would not read it, too."""
    x, y = batch()
    halved = chimera.schedule("chimera", depth=4, micro_batches=8).lower()
    runtime = Runtime(halved, linear, MSE, sgd)
    words = (
        r"`x` has 8 samples, which do not divide into 16 equal parts \(the schedule halves each of the 8 micro-batches\): give a "
        'multiple of 16, or schedule it with scaling="direct"'
    )
    says(words, lambda: runtime.step(x, y))
    says(words, lambda: runtime.evaluate(x, y))
    straight = program("1f1b", depth=4)
    for runtime in (Runtime(straight, linear, MSE, sgd), pytorch_runtime(straight, linear, MSE)):
        is_ours = isinstance(runtime, Runtime)
        for given, words in (
            ((x[:7], y[:7]), "`x` has 7 samples, which do not divide into 4 equal parts: give a multiple of 4$"),
            ((x.tolist(), y), "`x` is a list"),
            ((x, y[:7]), "`target` has 7 samples"),
            ((None, None), "holds stage [03] and needs `(x|target)`") if is_ours else ((x, {"a": 3}), "`target` is a int"),
        ):
            says(words, lambda: runtime.step(*given))
            says(words, lambda: runtime.evaluate(*given))
        runtime.step(x, y)


def run_all():
    alone()
    on_both()
    half_way()


def test_mistakes_on_two_ranks():
    on_ranks(2, run_all)


def test_a_wrong_batch_of_all_ranks_raises_on_all():
    on_ranks(4, wrong_on_all)


def test_what_one_rank_refuses_is_raised_on_all():
    on_ranks(4, refused_by_one)


def test_what_fails_on_one_rank_is_raised_on_all():
    on_ranks(4, failed_on_one)
