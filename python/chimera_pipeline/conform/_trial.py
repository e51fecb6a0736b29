"""A pipeline under trial: what the kit asks of each rank, and what it writes down."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

Tensors = Dict[str, torch.Tensor]
Batch = Tuple[torch.Tensor, torch.Tensor]


class Trial(NamedTuple):
    """One rank of a pipeline.

    - `step(x, target)` computes the gradients of a batch, which every rank is given whole, and returns the loss where it is known.
    - `parameters()` are those of this rank, by their names in the whole model.
    - `clip(max_norm)` clips, and returns the norm of all gradients, if the trial clips.
    - `update()` is the optimizer's step, which also forgets the gradients.
    - `save()` is what this rank writes into a checkpoint, by the names of the whole model's `state_dict`.
    """

    step: Callable[[torch.Tensor, torch.Tensor], Any]
    parameters: Callable[[], Mapping[str, torch.Tensor]]
    clip: Optional[Callable[[float], Any]] = None
    update: Optional[Callable[[], Any]] = None
    save: Optional[Callable[[], Optional[Mapping[str, Any]]]] = None


class Step(NamedTuple):
    """The results of a step on one rank; `weights` are those after the update."""

    loss: Optional[float]
    gradients: Dict[str, Optional[torch.Tensor]]
    norm: Optional[float]
    weights: Tensors


class Record(NamedTuple):
    """The results of one rank."""

    start: Tensors
    steps: List[Step]
    saved: Tensors


def record(make: Callable[[], Trial], batches: Sequence[Batch], max_norm: float | None) -> Record:
    """Runs a trial on this rank."""
    trial = make()
    start, steps = _values(trial), []
    for x, target in batches:
        loss = trial.step(x, target)
        gradients = {name: None if p.grad is None else p.grad.detach().clone() for name, p in trial.parameters().items()}
        norm = None if trial.clip is None or max_norm is None else float(trial.clip(max_norm))
        if trial.update is not None:
            trial.update()
        steps.append(Step(None if loss is None else float(loss), gradients, norm, _values(trial)))
    saved = (trial.save() if trial.save is not None else None) or {}
    return Record(start, steps, {name: value.detach().clone() for name, value in saved.items() if isinstance(value, torch.Tensor)})


def _values(trial: Trial) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in trial.parameters().items()}


def named(modules: Mapping[Any, torch.nn.Module]) -> Callable[[], Mapping[str, torch.Tensor]]:
    """`parameters` of stages by their number or name in the whole model, such as in `nn.Sequential(*stages)`."""
    return lambda: {f"{key}.{name}": p for key, module in modules.items() for name, p in module.named_parameters(remove_duplicate=False)}
