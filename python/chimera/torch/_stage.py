"""One stage of a worker: forward, recomputation and the parts of a backward, of one unit of a micro-batch."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, NamedTuple

import torch

from . import _autograd
from ._versions import Versions, Weights

Loss = Callable[[torch.Tensor, Any], torch.Tensor]


class Saved(NamedTuple):
    """What a backward needs of its forward."""

    x: torch.Tensor
    output: torch.Tensor
    weights: Weights


class Kept(NamedTuple):
    """What a recomputation needs of its forward."""

    x: torch.Tensor
    target: Any
    random_state: Any
    weights: Weights


class Stage:
    """A module with its place in the model."""

    def __init__(
        self,
        module: torch.nn.Module,
        versions: Versions,
        is_first: bool,
        loss_fn: Loss | None,
        autocast: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self.module, self.versions, self._is_first, self._loss_fn = module, versions, is_first, loss_fn
        self._autocast, self._device = autocast, device

    def forward(self, x: torch.Tensor, target: Any, weights: Weights | None = None) -> torch.Tensor:
        """The activation, or the loss of the last stage, by the newest weights or by those given."""
        mixed: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._autocast is not None:
            mixed = torch.autocast(self._device.type, dtype=self._autocast)
        with mixed:
            output = torch.func.functional_call(self.module, weights, (x,)) if weights else self.module(x)
            return output if self._loss_fn is None else self._loss_fn(output, target)

    def save(self, x: torch.Tensor, target: Any, weights: Weights) -> tuple[torch.Tensor, Saved]:
        """The output, and what its backward needs."""
        leaf = x.detach()
        leaf.requires_grad_(not self._is_first and leaf.is_floating_point())
        output = self.forward(leaf, target, weights)
        return output.detach(), Saved(leaf, output, weights)

    def keep(self, x: torch.Tensor, target: Any, weights: Weights) -> tuple[torch.Tensor, Kept]:
        """The output, and what a recomputation needs."""
        kept = Kept(x.detach(), target, _random_state(self._device), weights)
        with torch.no_grad():
            return self.forward(x, target, weights), kept

    def recompute(self, kept: Kept) -> Saved:
        """The forward again, with the random numbers that it had."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            _set_random_state(kept.random_state, self._device)
            return self.save(kept.x, kept.target, kept.weights)[1]

    def backward(self, saved: Saved, grad: torch.Tensor, update: int) -> torch.Tensor | None:
        """Adds the gradients of the weights to those of an update; returns the gradient of the input."""
        dx = _autograd.backward(saved.output, grad, saved.x)
        self.versions.collect(saved.weights, update)
        return dx

    def backward_input(self, saved: Saved, grad: torch.Tensor, update: int) -> tuple[Any, Callable[[], None]]:
        """Returns the gradient of the input, and what adds the gradients of the weights."""
        leaves = list(saved.weights.values()) or self.module.parameters()
        dx, add = _autograd.backward_input(saved.output, grad, saved.x, leaves)

        def add_weight_gradients() -> None:
            add()
            self.versions.collect(saved.weights, update)

        return dx, add_weight_gradients


def _random_state(device: torch.device) -> Any:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: Any, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
