"""One call from a model to training it."""

from __future__ import annotations

import os
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from .. import Error, Program, Timetable, auto, parse, schedule as make_schedule
from . import _checks
from ._cut import cut, without_cache
from ._losses import loss_of
from ._pieces import Pieces
from ._reductions import MakeOptimizer
from ._runtime import Runtime
from ._stage import Loss


Callback = Callable[["Training"], Any]
"""What is called after each step, on every rank: `runtime.n_steps` and `runtime.last` say which it was."""


class Training(Runtime):
    """A runtime of a cut model, whose batches are those of the whole model: keyword arguments, `labels` among them."""

    def __init__(
        self,
        pieces: Pieces,
        program: Program,
        loss_fn: Loss | None,
        optimizer: MakeOptimizer | None,
        *,
        callbacks: Sequence[Callback] = (),
        **options: Any,
    ) -> None:
        chosen, count = (loss_fn, options.pop("normalize", "mean")) if loss_fn else _loss(pieces, options)
        options = {"normalize": count, "tied": pieces.tied, "whole_names": True, **options}
        super().__init__(program, pieces.stages, chosen, optimizer, **options)
        self.cut, self._constant, self._callbacks = pieces, without_cache(pieces.model), callbacks
        self.n_steps = 0
        """Steps that were trained."""

    def step(self, x: Any = None, target: Any = None, **batch: Any) -> float:
        """Trains one step on a batch, `step(input_ids=…, labels=…)`, which all ranks of a pipeline are given."""
        target = batch.pop("labels", target)
        loss = super().step(x, target, **_shifted(self.cut.model, target, {**self._constant, **batch}))
        self.n_steps += 1
        for callback in self._callbacks:
            callback(self)
        return loss

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
    model: nn.Module | Pieces,
    schedule: str | Timetable = "1f1b",
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
      unless `shape` has another `scaling` than `"direct"`. `"auto"` searches on rank 0, for `chimera.auto`'s ten seconds unless
      `shape` has another `search_time`. A timetable is taken as it is.
    - `loss_fn(output, labels)` is the mean over samples, if not given `normalize`. Models of transformers whose loss is
      a mean over tokens, samples or numbers have theirs without it, over the whole batch and all labels that are not -100.
    - `layout` and `example` are those of `cut`; `callbacks` are called with the runtime after each step; all other options are
      those of `Runtime`.
    """
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise Error(
                "training runs in several processes: start the script by `torchrun --nproc-per-node N script.py`, or a function by "
                "`chimera_pipeline.torch.launch`"
            )
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(dist.get_node_local_rank())
    if isinstance(schedule, Timetable):
        timetable = schedule
    else:
        timetable = _timetable(schedule, depth, micro_batches, shape or {}, options.get("group"))
    timetable = timetable.passes(**passes) if passes else timetable
    pieces = model if isinstance(model, Pieces) else cut(model, timetable.stages, layout=layout, example=example)
    return Training(pieces, pieces.lower(timetable, **(lower or {})), loss_fn, optimizer, **options)


def depth_of(schedule: str | Timetable = "1f1b", depth: int | None = None) -> int:
    """The number of workers of a pipeline that `train` makes of these arguments, by default all ranks."""
    if isinstance(schedule, Timetable):
        return schedule.depth
    return dist.get_world_size() if depth is None else depth


def _timetable(schedule: str, depth: int | None, micro_batches: int | None, shape: dict[str, Any], group: Any) -> Timetable:
    """The timetable of a schedule, the same on all ranks of a group."""
    given = {"depth": dist.get_world_size(group) if depth is None else depth, "micro_batches": micro_batches, "scaling": "direct", **shape}
    if schedule != "auto":
        return make_schedule(schedule, **given)
    # A search goes on for a time, so that ranks would find different orders.
    made: list[Any] = [None]
    failure: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            made = [auto(**{"placement": "any", **given}).to_json()]
        except Exception as error:
            failure = error
    _checks.raise_together(failure, "search an order", group if group is not None else dist.group.WORLD)
    dist.broadcast_object_list(made, group=group, group_src=0)
    return parse(made[0])


def _loss(pieces: Pieces, options: dict[str, Any]) -> tuple[Loss, Any]:
    """The loss of a model of transformers, as a sum, and what counts its parts."""
    if options.pop("normalize", "tokens") != "tokens":
        raise Error("the loss of the model itself counts tokens: give `loss_fn` with another `normalize`")
    if pieces.example is None:
        raise Error("a pipe says nothing of the loss: give `loss_fn`, from what the last stage returns and `labels` to the mean")
    args, kwargs = pieces.example
    form = loss_of(pieces.model, args, kwargs, pieces.output)
    return form.loss, form.count


def _shifted(model: nn.Module, labels: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with the tokens of a decoder, which are the labels one place later."""
    if labels is None or not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return batch
    if "decoder_input_ids" in batch or "decoder_inputs_embeds" in batch:
        return batch
    shift: Callable[[Any], Any] | None = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    # Models without a function for it shift labels in their `forward`.
    return {**batch, "labels": labels} if shift is None else {**batch, "decoder_input_ids": shift(labels)}
