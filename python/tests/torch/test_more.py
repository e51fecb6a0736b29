"""Auxiliary losses, options by names, pipes of PyTorch, searched orders and ranks of a notebook: all as the whole model does."""

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from chimera_pipeline.torch import Runtime, add_loss, from_pipe, launch, loggers, train  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, batch, linear  # noqa: E402

close = lambda ours, theirs: torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # noqa: E731


class Balanced(nn.Module):
    """A stage whose hidden values are to be small, too."""

    def __init__(self, stage):
        super().__init__()
        self.linear = linear(stage)

    def forward(self, x):
        hidden = self.linear(x)
        add_loss(0.1 * hidden.square().mean())
        return self.linear(hidden)


def auxiliary():
    x, y = batch()
    parts = [Balanced(stage) for stage in range(4)]
    value, extra = x, 0.0
    for part in parts:
        hidden = part.linear(value)
        extra, value = extra + 0.1 * hidden.square().mean(), part.linear(hidden)
    loss = MSE(value, y)
    (loss + extra).backward()
    wanted = {stage: [p.grad for p in part.parameters()] for stage, part in enumerate(parts)}
    for name, passes in (("1f1b", {}), ("chimera", {}), ("zb-h1", {}), ("dualpipe", {}), ("1f1b", {"recompute": "full"})):
        program = chimera.schedule(name, depth=4, micro_batches=8, scaling="direct").passes(**passes).lower()
        runtime = Runtime(program, Balanced, MSE, None)
        close(runtime.step(x, y), loss.item())
        close(runtime.last.auxiliary, extra.item())
        for stage, module in runtime.modules.items():
            close([p.grad for p in module.parameters()], wanted[stage])


def grouped():
    x, y = batch()
    groups = lambda name: {"weight_decay": 0.0, "lr": 0.2} if name.endswith("bias") else {"weight_decay": 0.5}  # noqa: E731
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.1)  # noqa: E731
    whole = nn.Sequential(*(linear(stage) for stage in range(4)))
    optimizer = adamw([{"params": [p], **groups(name)} for name, p in whole.named_parameters()])
    MSE(whole(x), y).backward()
    optimizer.step()
    program = chimera.schedule("chimera", depth=4, micro_batches=8, scaling="direct").lower()
    runtime = Runtime(program, linear, MSE, adamw, groups=groups)
    runtime.step(x, y)
    for stage, module in runtime.modules.items():
        close([p.detach() for p in module.parameters()], [p.detach() for p in whole[stage].parameters()])
    with pytest.raises(chimera.Error, match="`groups.*returned None: return a dict of options"):
        Runtime(program, linear, MSE, adamw, groups=lambda name: None)


class Skips(nn.Module):
    """A model with a tied matrix, and values that pass over a stage."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(9, WIDTH)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.d, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids, scale):
        x = self.embedding(ids)
        y = self.a(x) * scale
        z = self.c(torch.tanh(self.b(y)) + x)
        return self.head(self.d(z) + y)


def piped():
    from torch.distributed.pipelining import SplitPoint, pipeline

    model = Skips().double()
    torch.manual_seed(4)
    ids, labels, scale = torch.randint(9, (8, 5)), torch.randint(9, (8, 5)), torch.rand(8, 1, 1).double()
    loss_fn = lambda output, labels: F.cross_entropy(output.flatten(0, 1), labels.flatten())  # noqa: E731
    split = {name: SplitPoint.BEGINNING for name in "bcd"}

    def pieces():
        own = Skips().double()
        return from_pipe(pipeline(own, (ids[:1],), mb_kwargs={"scale": scale[:1]}, split_spec=split), own)

    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.1, eps=1e-5)  # noqa: E731
    optimizer = adamw(model.parameters())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_fn(model(ids, scale), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
    for schedule in ("1f1b", "chimera", "zb-h1"):
        runtime = train(pieces(), schedule, micro_batches=8, loss_fn=loss_fn, optimizer=adamw)
        close([runtime.step(ids, labels, scale=scale) for _ in range(2)], losses)
        for module in runtime.modules.values():
            for name, p in module.named_parameters():
                close(p.detach(), weights[name])
        state = runtime.state_dict()
        assert dist.get_rank() or state.keys() == weights.keys()
    with pytest.raises(chimera.Error, match="a pipe says nothing of the loss"):
        train(pieces(), "1f1b", micro_batches=8, optimizer=adamw)


def searched():
    x, y = batch()
    model = nn.Sequential(*(linear(stage) for stage in range(16)))
    loss = MSE(model(x), y).item()
    seen = []
    log = lambda runtime: seen.append((runtime.n_steps, runtime.last.loss))  # noqa: E731
    options = dict(loss_fn=MSE, optimizer=lambda p: torch.optim.SGD(p, 0.1), example=x[:1], callbacks=[log])
    runtime = train(model, "auto", micro_batches=8, shape={"search_time": 1.0}, **options)
    close(runtime.step(x, y), loss)
    assert [n for n, _ in seen] == [1] and seen[0][1] == runtime.last.loss
    with pytest.raises(chimera.Error, match="placement"):
        train(model, "auto", micro_batches=8, shape={"placement": "nonesuch"}, **options)


def run_all():
    auxiliary()
    grouped()
    piped()
    searched()


def test_on_four_ranks():
    on_ranks(4, run_all)


def test_a_notebook_starts_ranks():
    def of_cell(factor):
        runtime = Runtime(chimera.schedule("1f1b", depth=2, micro_batches=4).lower(), linear, MSE, None)
        return dist.get_rank(), factor * runtime.step(*batch())

    (first, loss), (second, other) = launch(of_cell, 2, 2.0)
    x, y = batch()
    assert (first, second) == (0, 1) and loss == other == pytest.approx(2 * MSE(nn.Sequential(linear(0), linear(1))(x), y).item())

    def wrong():
        if dist.get_rank() == 1:
            raise KeyError("nonesuch")
        dist.barrier()

    with pytest.raises(chimera.Error, match="rank 1 of 2 failed:(.|\n)*KeyError: 'nonesuch'"):
        launch(wrong, 2)
    with pytest.raises(chimera.Error, match="choose 1 or more"):
        launch(wrong, 0)


class Fake:
    """A package of a logger."""

    def __init__(self):
        self.seen = []
        for name in ("log", "log_metrics"):
            setattr(self, name, lambda values, step: self.seen.append((step, values)))

    def init(self, **options):
        self.options = options
        return self

    start_run = init

    def SummaryWriter(self, folder):
        self.options = {"folder": folder}
        return self

    def add_scalar(self, name, value, step):
        self.seen.append((step, {name: value}))

    def flush(self):
        pass


class Trained:
    n_steps, optimizers = 3, []
    last = type("Last", (), {"loss": 0.5, "grad_norm": 2.0, "auxiliary": 0.0})


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow", "tensorboard"])
def test_loggers_log_by_their_packages(name, monkeypatch):
    fake = Fake()
    monkeypatch.setattr(loggers, "_package", lambda _: fake)
    log = loggers.tensorboard("here") if name == "tensorboard" else getattr(loggers, name)(project="mine")
    log(Trained)
    assert fake.options == ({"folder": "here"} if name == "tensorboard" else {"project": "mine"})
    values = {}
    for step, own in fake.seen:
        values.update(own)
        assert step == 3
    assert values == {"loss": 0.5, "grad_norm": 2.0}


def test_a_logger_without_its_package_says_so():
    with pytest.raises(chimera.Error, match="needs the package `nonesuch`"):
        loggers._package("nonesuch")
