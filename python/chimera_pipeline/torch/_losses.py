"""The loss of a model of transformers as a sum over targets, found by one small run of it."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .. import Error
from ._batches import IGNORED
from ._blocks import evaluated
from ._stage import Loss


class Form(NamedTuple):
    """A loss as a sum, and what it is divided by."""

    loss: Loss
    count: Callable[[Any], int]
    draw: Callable[[torch.Tensor], torch.Tensor]
    """Targets for an output."""


def _entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # Of 16 bits a sum over a vocabulary would be too coarse.
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return F.cross_entropy(wide.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def next_tokens(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all tokens but the first."""
    return _entropy(_logits(output)[..., :-1, :], labels[..., 1:])


def classes(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all samples or tokens."""
    return _entropy(_logits(output), labels)


def numbers(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum of squared errors."""
    return F.mse_loss(_logits(output).reshape(labels.shape), labels, reduction="sum")


def yes_or_no(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all classes, of which a sample may have several."""
    return F.binary_cross_entropy_with_logits(_logits(output), labels, reduction="sum")


def _logits(output: Any) -> torch.Tensor:
    logits: torch.Tensor = output["logits"]
    return logits


def _draw_classes(logits: torch.Tensor) -> torch.Tensor:
    made = torch.randint(logits.shape[-1], logits.shape[:-1], generator=torch.Generator().manual_seed(1))
    if made.dim() > 1:
        made[..., -2::4] = IGNORED
    return made.to(logits.device)


def _draw_numbers(logits: torch.Tensor) -> torch.Tensor:
    return torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)).to(logits)


def _n_not_ignored(labels: torch.Tensor) -> int:
    return int((labels != IGNORED).sum())


NEXT_TOKENS = Form(next_tokens, lambda labels: _n_not_ignored(labels[..., 1:]), _draw_classes)
CLASSES = Form(classes, _n_not_ignored, _draw_classes)
_FORMS: Sequence[Form] = (
    NEXT_TOKENS,
    CLASSES,
    Form(numbers, torch.numel, lambda logits: _draw_numbers(logits).squeeze(-1)),
    Form(yes_or_no, torch.numel, lambda logits: _draw_numbers(logits).round()),
)

_BY_NAME = {"ForCausalLM": NEXT_TOKENS, **dict.fromkeys(("ForMaskedLM", "ForTokenClassification", "ForImageClassification"), CLASSES)}
"""What transformers calls losses, for models that cannot be run here because they are on the meta device."""


def loss_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Form:
    """The form that gives the loss of the model itself on a small batch, of which `output` is what it returns. Raises if none does."""
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise Error(f"{type(model).__name__} returns no `logits`: give `loss_fn`, from what the model returns and `labels` to the mean")
    if logits.is_meta:
        known = _BY_NAME.get(str(getattr(model, "loss_type", None)))
        if known is not None:
            return known
    reason = "none of the losses that sum over tokens, samples or numbers"
    for form in () if logits.is_meta else _FORMS:
        try:
            labels = form.draw(logits)
            with torch.no_grad(), torch.random.fork_rng():
                made = evaluated(model, args, {**kwargs, "labels": labels})
            ours = form.loss(made, labels) / form.count(labels)
        except Exception as error:
            reason = f"the model refuses labels of all kinds that are known here ({type(error).__name__}: {str(error)[:120]})"
            continue
        theirs = made["loss"]
        if theirs is not None and torch.allclose(ours.double(), theirs.double().reshape(()), rtol=1e-3, atol=1e-6):
            return form
        reason = f"its loss is {float(theirs):.6g} where sums over tokens, samples or numbers give others" if theirs is not None else reason
    raise Error(
        f"the loss of {type(model).__name__} is not known: {reason}: give `loss_fn`, from what the model returns and `labels` to the mean"
    )
