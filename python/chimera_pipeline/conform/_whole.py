"""The model run whole: losses, gradients by micro-batch, norm and weights that a pipeline must have."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch

from ._trial import Batch, Tensors

MakeOptimizer = Callable[[List[torch.nn.Parameter]], torch.optim.Optimizer]
Parts = Dict[str, torch.Tensor]
"""Gradients by the name of the parameter; the first dimension is that of micro-batches. They add up to the gradient."""


class Expected(NamedTuple):
    """The results of the whole model at a step."""

    loss: float
    parts: Parts
    apart: Parts
    """`parts` as if tied parameters were not tied."""
    norm: float
    weights: Tensors
    unclipped: Tensors
    """Weights of an update by gradients that were not clipped."""


class Whole:
    """A model, trained step by step as a pipeline should train it."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        micro_batches: int,
        *,
        is_sum: bool,
        optimizer: Optional[MakeOptimizer],
        max_norm: Optional[float],
    ) -> None:
        self._model, self._loss_fn, self._n, self._max_norm = model, loss_fn, micro_batches, max_norm
        self._divisor = 1 if is_sum else micro_batches
        self.names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        trained = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = optimizer(trained) if optimizer is not None else None

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Gives the model the weights of the pipeline."""
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(value)

    def tied(self, name: str) -> list[str]:
        """The names of a parameter."""
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        return [other for other, p in parameters.items() if p is parameters[name]]

    def step(self, batch: Batch) -> Expected:
        """Trains a step."""
        losses, parts = self._parts(self._model, batch)
        apart = self._parts(_untied(self._model), batch)[1]
        parameters = dict(self._model.named_parameters())
        for name, p in parameters.items():
            p.grad = parts[name].sum(0) if p.requires_grad else None
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters.values() if p.grad is not None]))
        unclipped = self._updated_copy() if self._max_norm is not None else {}
        if self._max_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), self._max_norm)
        if self._optimizer is not None:
            self._optimizer.step()
        return Expected(sum(losses), parts, apart, norm, self.weights(), unclipped)

    def parts_at(self, weights: Mapping[str, torch.Tensor], batch: Batch) -> Parts:
        """The gradients of a batch at other weights."""
        now = self.weights()
        self.load(weights)
        parts = self._parts(self._model, batch)[1]
        self.load(now)
        return parts

    def weights(self) -> Tensors:
        """The weights by all names."""
        return {name: p.detach().clone() for name, p in self._model.named_parameters(remove_duplicate=False)}

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint should have."""
        return dict(self._model.state_dict())

    def _updated_copy(self) -> Tensors:
        model, optimizer = copy.deepcopy((self._model, self._optimizer))
        for p, q in zip(model.parameters(), self._model.parameters()):
            p.grad = None if q.grad is None else q.grad.clone()
        if optimizer is not None:
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}

    def _parts(self, model: torch.nn.Module, batch: Batch) -> tuple[list[float], Parts]:
        """The loss and the gradients of each micro-batch."""
        named = [(name, p) for name, p in model.named_parameters(remove_duplicate=False)]
        losses, rows = [], []
        for x, target in zip(*(tensor.chunk(self._n) for tensor in batch)):
            model.zero_grad()
            loss = self._loss_fn(model(x), target) / self._divisor
            loss.backward()
            losses.append(loss.item())
            rows.append({name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named})
        model.zero_grad()
        return losses, {name: torch.stack([row[name] for row in rows]) for name, _ in named}


def _untied(model: torch.nn.Module) -> torch.nn.Module:
    """A copy in which each name has a parameter of its own."""
    made, seen = copy.deepcopy(model), set()
    for part in made.modules():
        for name, p in part._parameters.items():
            if p is None:
                continue
            if id(p) in seen:
                part._parameters[name] = torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
            seen.add(id(p))
    return made


def coefficients(gradients: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], tolerance: float) -> Optional[list[float]]:
    """The share of each micro-batch in gradients, if they are a sum of its parts."""
    found = torch.cat([gradient.double().reshape(-1) for gradient in gradients])
    basis = torch.cat([part.double().reshape(len(part), -1) for part in parts], dim=1)
    if int(torch.linalg.matrix_rank(basis)) < len(basis):
        # Other shares would give the same.
        return None
    made = torch.linalg.lstsq(basis.T, found.unsqueeze(1)).solution.squeeze(1)
    size = max(float(found.norm()), float(basis.norm()))
    is_right = float((basis.T @ made - found).norm()) <= tolerance * max(size, 1e-300)
    return made.tolist() if is_right else None
