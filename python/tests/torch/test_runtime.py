"""Any proven program trains as the whole model does: losses, gradients and weights in f64."""

import functools

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import Runtime  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402

WIDTH, STEPS, CLIP = 6, 3, 0.05
TOLERANCE = 1e-12

CASES = {
    "1f1b": lambda: chimera.schedule("1f1b", micro_batches=8),
    "chimera": lambda: chimera.schedule("chimera", micro_batches=4),
    "chimera of four pipes": lambda: chimera.schedule("chimera", micro_batches=8, pipes=4),
    "chimera, odd": lambda: chimera.schedule("chimera", micro_batches=5),
    "chimera, doubling": lambda: chimera.schedule("chimera", micro_batches=8, scaling="doubling"),
    "chimera, halving": lambda: chimera.schedule("chimera", micro_batches=8, scaling="halving"),
    "gpipe": lambda: chimera.schedule("gpipe", micro_batches=4),
    "gems": lambda: chimera.schedule("gems", micro_batches=4),
    "interleaved": lambda: chimera.schedule("interleaved", micro_batches=4),
    "dualpipe": lambda: chimera.schedule("dualpipe", micro_batches=8),
    "dualpipe-v": lambda: chimera.schedule("dualpipe-v", micro_batches=8),
    "mixpipe": lambda: chimera.schedule("mixpipe", micro_batches=8),
    "zb-h1": lambda: chimera.schedule("zb-h1", micro_batches=8),
    "zb-v": lambda: chimera.schedule("zb-v", micro_batches=8),
    "hanayo": lambda: chimera.schedule("hanayo", micro_batches=4),
    "auto": lambda: chimera.auto(micro_batches=6, split_backward=True, search_time=1e6, forward=1, backward=2),
    "one worker": lambda: chimera.schedule("1f1b", depth=1, micro_batches=3),
    "two workers": lambda: chimera.schedule("chimera", depth=2, micro_batches=5),
    "recomputed": lambda: chimera.schedule("chimera", micro_batches=4).passes(recompute="full"),
    "recomputed selectively": lambda: chimera.schedule("dualpipe", micro_batches=8).passes(recompute="selective"),
    "recomputed and split": lambda: chimera.schedule("1f1b", micro_batches=8).passes(
        recompute="full", split_backward=True
    ),
}

CROSSING = {"dualpipe": (6, 12), "dualpipe-v": (4, 8), "hanayo": (4, 8), "mixpipe": (4, 8)}
CROSSING |= {"v-half": (4, 4), "v-min": (3, 3), "zb-v": (4, 8)}
"""Depth and micro-batches at which messages between two workers arrive in another order than they are sent."""

CASES |= {
    f"{name}, crossing": lambda name=name, depth=d, n=n: chimera.schedule(name, depth=depth, micro_batches=n)
    for name, (d, n) in CROSSING.items()
}


class Part(nn.Module):
    """A stage in which one weight is used twice, so that the halves of a backward have to be told apart."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(stage)
        self.norm = nn.LayerNorm(WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=stage % 2 == 0)
        self.double()

    def forward(self, x):
        hidden = torch.tanh(self.twice(self.norm(x)))
        return x + self.out(hidden * self.twice(hidden))


def batch(step, n):
    """Inputs and targets of a step, for all groups."""
    torch.manual_seed(1000 + step)
    return torch.randn(n, WIDTH, dtype=torch.float64), torch.randn(n, WIDTH, dtype=torch.float64)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def slower(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@functools.lru_cache
def timetable(name):
    return CASES[name]().to_json()


def whole(n_stages, n_samples):
    """Losses, norms, gradients of the last step and weights of the whole model."""
    model = nn.Sequential(*(Part(stage) for stage in range(n_stages)))
    optimizer = adam(model.parameters())
    scheduler = slower(optimizer)
    losses, norms = [], []
    for step in range(STEPS):
        x, y = batch(step, n_samples)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    x, y = batch(STEPS, n_samples)
    losses.append(nn.functional.mse_loss(model(x), y).item())
    named = {n: (p.detach(), p.grad) for n, p in model.named_parameters()}
    return losses, norms, named


def train(timetable, n_samples, in_one_order):
    program = chimera.parse(timetable).lower()
    runtime = Runtime(
        program, Part, nn.functional.mse_loss, adam, scheduler=slower, clip=CLIP, in_one_order=in_one_order
    )
    group, share = dist.get_rank() // program.depth, n_samples // runtime.width
    own = slice(group * share, (group + 1) * share)
    losses, norms = [], []
    for step in range(STEPS):
        x, y = batch(step, n_samples)
        losses.append(runtime.step(x[own], y[own]))
        norms.append(runtime.last.grad_norm)
    x, y = batch(STEPS, n_samples)
    losses.append(runtime.evaluate(x[own], y[own]))
    named = {f"{s}.{n}": (p.detach(), p.grad) for s, m in runtime.modules.items() for n, p in m.named_parameters()}
    assert runtime.timeline().makespan > 0
    return losses, norms, named, runtime.state_dict()


def train_all(timetables, n_samples, in_one_order):
    return {name: train(timetable, n_samples, in_one_order) for name, timetable in timetables.items()}


def check(names, n_ranks, n_samples, in_one_order=False):
    results = on_ranks(n_ranks, train_all, {name: timetable(name) for name in names}, n_samples, in_one_order)
    for name in names:
        losses, norms, named = whole(chimera.parse(timetable(name)).stages, n_samples)
        close = functools.partial(torch.testing.assert_close, rtol=TOLERANCE, atol=TOLERANCE)
        seen = {}
        for theirs in (result[name] for result in results):
            close(torch.tensor(theirs[0]), torch.tensor(losses), msg=lambda m: f"{name}: losses: {m}")
            close(torch.tensor(theirs[1]), torch.tensor(norms), msg=lambda m: f"{name}: norms: {m}")
            for key, (weight, grad) in theirs[2].items():
                close(grad, named[key][1], msg=lambda m: f"{name}: gradient of {key}: {m}")
                close(weight, named[key][0], msg=lambda m: f"{name}: {key}: {m}")
                # Replicas are equal to the bit.
                assert all(torch.equal(*pair) for pair in zip(seen.setdefault(key, (weight, grad)), (weight, grad)))
        assert seen.keys() == named.keys()
        assert results[0][name][3].keys() == named.keys()
        assert not any(result[name][3] for result in results[1:])


@pytest.mark.parametrize("in_one_order", [False, True], ids=["by tags", "in one order"])
def test_programs_train_as_the_whole_model(in_one_order):
    check([name for name in CASES if "crossing" not in name], 4, 240, in_one_order)


def crosses(rows):
    """Whether a transport that matches messages by their order alone would hand out wrong tensors."""
    sent, received = {}, {}
    for worker, row in enumerate(rows):
        for instruction in row:
            if instruction["do"] == "send":
                sent.setdefault((worker, instruction["to"]), []).append(instruction["token"])
            if instruction["do"] == "recv":
                received.setdefault((instruction["from"], worker), []).append(instruction["token"])
    return sent != received


@pytest.mark.parametrize("depth", sorted({depth for depth, _ in CROSSING.values()}))
def test_programs_whose_messages_cross_train_in_one_order(depth):
    names = [f"{name}, crossing" for name, (own, _) in CROSSING.items() if own == depth]
    for name in names:
        program = CASES[name]().lower()
        assert crosses(program.rows) and not crosses(program.one_order_rows()), name
    check(names, depth, 240, in_one_order=True)


def losses_as_written(timetables, n_samples):
    """Losses of a second step whose messages have no tags, and are received where the program, made for tags, has them."""
    losses = {}
    for name, timetable in timetables.items():
        runtime = Runtime(chimera.parse(timetable).lower(), Part, nn.functional.mse_loss, adam, in_one_order=False)
        # The first step learns shapes: gloo ends a process that takes a description for a tensor.
        runtime.step(*batch(0, n_samples))
        tags = runtime._executor._messages._tags
        tags.update(dict.fromkeys(tags, 0))
        losses[name] = runtime.step(*batch(1, n_samples))
    return losses


def test_without_tags_and_in_another_order_tensors_are_swapped():
    names = [name for name, (depth, _) in CROSSING.items() if depth == 4]
    timetables = {name: timetable(f"{name}, crossing") for name in names}
    for losses in on_ranks(4, losses_as_written, timetables, 240):
        for name, loss in losses.items():
            wanted, *_ = whole(chimera.parse(timetables[name]).stages, 240)
            assert abs(loss - wanted[1]) > 1e-3, f"{name}: if this is right, the one order is not needed"


def test_groups_side_by_side_train_as_one():
    check(["chimera", "zb-h1"], 8, 64)
