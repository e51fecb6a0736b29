"""Stages hand on several tensors in trees, of any shapes, and losses count tokens: all as the whole model does."""

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from chimera_pipeline.torch import Runtime  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import WIDTH, linear, sgd  # noqa: E402

TOKENS = 7


class Part(nn.Module):
    """A stage of five values: two with gradients, a mask, one that needs none, and a number."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(stage)
        self.stage, self.linear, self.skip = stage, linear(stage), linear(stage + 10)
        self.table = nn.Embedding(TOKENS, WIDTH, dtype=torch.float64) if stage == 0 else None

    def forward(self, x, state=None, scale=None):
        if self.stage == 0:
            x, state = self.table(x), {"skip": self.table(x) * 2, "mask": x > 2, "cos": x.double().cos()[..., None], "n": (1, None)}
        hidden = self.linear(x) * torch.where(state["mask"][..., None], state["cos"], 1.0) + self.skip(state["skip"])
        hidden = hidden if scale is None else hidden * scale[:, None, None]
        if self.stage == 3:
            return {"logits": hidden}
        return hidden, {**state, "skip": hidden if self.stage == 1 else state["skip"], "n": (state["n"][0] + 1, None)}


def summed(output, target):
    return F.cross_entropy(output["logits"].flatten(0, 1), target["labels"].flatten(), reduction="sum", ignore_index=-100)


def batch(step, length):
    torch.manual_seed(step)
    ids, labels = torch.randint(TOKENS, (8, length)), torch.randint(WIDTH, (8, length))
    labels[torch.rand(8, length) < 0.1 * step] = -100
    return ids, {"labels": labels}, torch.rand(8, dtype=torch.float64)


def whole(batches):
    parts = [Part(stage) for stage in range(4)]
    optimizer = sgd([p for part in parts for p in part.parameters()])
    losses = []
    for ids, target, scale in batches:
        optimizer.zero_grad()
        value = parts[0](ids, scale=scale)
        for part in parts[1:]:
            value = part(*value, scale=scale)
        loss = summed(value, target) / (target["labels"] != -100).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {f"{s}.{n}": p.detach() for s, part in enumerate(parts) for n, p in part.named_parameters()}, value["logits"]


def train():
    batches = [batch(step, (5, 5, 3, 6)[step % 4]) for step in range(4)]
    wanted, weights, _ = whole(batches)
    for name, passes in (("1f1b", {}), ("chimera", {}), ("dualpipe", {}), ("zb-h1", {}), ("chimera", {"recompute": "full"})):
        program = chimera.schedule(name, depth=4, micro_batches=8, scaling="direct").passes(**passes).lower()
        for dynamic in (False, True):
            runtime = Runtime(program, Part, summed, sgd, normalize="tokens", dynamic_shapes=dynamic)
            losses = [runtime.step(x, target, scale=scale) for x, target, scale in batches]
            torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-12, msg=lambda m: f"{name}: {m}")
            for stage, module in runtime.modules.items():
                for n, p in module.named_parameters():
                    torch.testing.assert_close(p.detach(), weights[f"{stage}.{n}"], rtol=1e-12, atol=1e-12, msg=lambda m: f"{name} {n}: {m}")
    ids, target, scale = batches[0]
    made = runtime.predict(ids, scale=scale)
    assert (made is None) == (torch.distributed.get_rank() != 0)
    with torch.no_grad():
        parts = [runtime.modules.get(s) for s in range(4)]
    return None if made is None else made["logits"].shape, [p is not None for p in parts]


def ragged():
    """Micro-batches one by one, each of its own length, are as the whole model on each."""
    torch.manual_seed(3)
    ids = [torch.randint(TOKENS, (1, 2 + i)) for i in range(4)]
    targets = [{"labels": torch.randint(WIDTH, (1, 2 + i))} for i in range(4)]
    program = chimera.schedule("1f1b", depth=4, micro_batches=4).lower()
    runtime = Runtime(program, Part, summed, sgd, normalize=lambda target: target["labels"].numel())
    parts = [Part(stage) for stage in range(4)]
    total = 0.0
    for x, target in zip(ids, targets):
        value = parts[0](x)
        for part in parts[1:]:
            value = part(*value)
        total = total + summed(value, target)
    wanted = total.item() / 14
    for _ in range(2):
        assert abs(runtime.evaluate(ids, targets) - wanted) < 1e-12
    assert abs(runtime.step(ids, targets) - wanted) < 1e-12


def test_trees_of_values_train_as_the_whole_model():
    results = on_ranks(4, train)
    assert results[0][0] == (8, 5, WIDTH)


def test_micro_batches_of_unlike_lengths():
    on_ranks(4, ragged)
