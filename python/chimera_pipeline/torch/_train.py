"""One call from a model to training it."""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .. import Error, schedule as make_schedule
from ._batches import IGNORED
from ._cut import Cut, cut, without_cache
from ._reductions import MakeOptimizer
from ._runtime import Runtime
from ._stage import Loss


class Training(Runtime):
    """A runtime of a cut model, whose batches are those of the whole model: keyword arguments, `labels` among them."""

    def __init__(self, pieces: Cut, program: Any, loss_fn: Loss | None, optimizer: MakeOptimizer | None, **options: Any) -> None:
        chosen, count = (loss_fn, options.pop("normalize", "mean")) if loss_fn else _loss(pieces.model, options)
        options = {"normalize": count, "tied": pieces.tied, "whole_names": True, **options}
        super().__init__(program, pieces.stages, chosen, optimizer, **options)
        self.cut, self._constant = pieces, without_cache(pieces.model)

    def step(self, x: Any = None, target: Any = None, **batch: Any) -> float:
        """Trains one step on a batch, `step(input_ids=…, labels=…)`, which all ranks of a pipeline are given."""
        target = batch.pop("labels", target)
        return super().step(x, target, **_shifted(self.cut.model, target, {**self._constant, **batch}))

    def evaluate(self, x: Any = None, target: Any = None, **batch: Any) -> float:
        """The mean loss of a batch, on every rank. Modules are in evaluation mode meanwhile."""
        target = batch.pop("labels", target)
        return super().evaluate(x, target, **_shifted(self.cut.model, target, {**self._constant, **batch}))

    def predict(self, x: Any = None, **batch: Any) -> Any:
        """What the whole model returns for a batch, on the first rank of each pipeline; None on others."""
        return super().predict(x, **self._constant, **batch)

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Saves the whole model as transformers does, from rank 0. Every rank must call it."""
        model: Any = self.cut.model
        state = self.state_dict()
        if not hasattr(model, "save_pretrained"):
            raise Error(f"{type(model).__name__} has no `save_pretrained`: save what `state_dict()` returns on rank 0")
        if dist.get_rank(self._group) == 0:
            names = set(model.state_dict())
            model.save_pretrained(folder, state_dict={name: value for name, value in state.items() if name in names}, **options)
        dist.barrier(group=self._group)


def train(
    model: nn.Module | Cut,
    schedule: str = "1f1b",
    *,
    optimizer: MakeOptimizer | None,
    depth: int | None = None,
    micro_batches: int | None = None,
    loss_fn: Loss | None = None,
    layout: Any = None,
    example: Any = None,
    lower: dict[str, Any] | None = None,
    passes: dict[str, Any] | None = None,
    shape: dict[str, Any] | None = None,
    **options: Any,
) -> Training:
    """Cuts a model, proves a schedule, and returns what trains it: `runtime.step(**batch)`.

    Every rank calls it with the same model, whole or cut, in processes that `torchrun` started.

    - `schedule` and `depth` [default: the number of ranks] and `micro_batches` are those of `chimera.schedule`, which takes
      `shape` too, such as `{"pipes": 4}`; `passes` and `lower` go to the methods of these names. Micro-batches stay whole,
      unless `shape` has another `scaling` than `"direct"`.
    - `loss_fn(output, labels)` is the mean over samples, if not given `normalize`. Models of transformers that predict
      tokens or classes have theirs without it: the cross-entropy of the whole batch, over all labels that are not -100.
    - `layout` and `example` are those of `cut`, all other options those of `Runtime`.
    """
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise Error("training runs in several processes: start the script by `torchrun --nproc-per-node N script.py`")
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(dist.get_node_local_rank())
    depth = dist.get_world_size(options.get("group")) if depth is None else depth
    shape = {"scaling": "direct", **(shape or {})}
    timetable = make_schedule(schedule, depth=depth, micro_batches=micro_batches, **shape).passes(**(passes or {}))
    pieces = model if isinstance(model, Cut) else cut(model, timetable.stages, layout=layout, example=example)
    return Training(pieces, pieces.lower(timetable, **(lower or {})), loss_fn, optimizer, **options)


def _loss(model: nn.Module, options: dict[str, Any]) -> tuple[Loss, Any]:
    """The loss of a model of transformers, as a sum, and what counts its parts."""
    kind = str(getattr(model, "loss_type", None))
    if options.pop("normalize", "tokens") != "tokens":
        raise Error("the loss of the model itself counts tokens: give `loss_fn` with another `normalize`")
    # The name of GPT-2's class tells transformers no kind, so that it takes this one.
    if kind == "ForCausalLM" or type(model).__name__ == "GPT2LMHeadModel":
        return _next_tokens, lambda labels: int((labels[..., 1:] != IGNORED).sum())
    if kind in ("ForMaskedLM", "ForTokenClassification", "ForSequenceClassification", "ForImageClassification") or (
        getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    ):
        return _classes, "tokens"
    raise Error(f"the loss of {type(model).__name__} is not known: give `loss_fn`, from what the model returns and `labels` to the mean")


def _next_tokens(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all tokens but the first."""
    return _entropy(output["logits"][..., :-1, :], labels[..., 1:])


def _classes(output: Any, labels: torch.Tensor) -> torch.Tensor:
    return _entropy(output["logits"], labels)


def _entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # Of 16 bits a sum over a vocabulary would be too coarse.
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return F.cross_entropy(wide.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def _shifted(model: nn.Module, labels: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with the tokens of a decoder, which are the labels one place later."""
    shift: Callable[[Any], Any] | None = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None and labels is not None and "decoder_input_ids" not in batch:
        return {**batch, "decoder_input_ids": shift(labels)}
    return batch
