"""One stage of a worker: forward, recomputation and the parts of a backward, of one unit of a micro-batch."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, NamedTuple

import torch

from .. import Error
from . import _autograd, _checks
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
    buffers: Weights


class Stage:
    """A module with its place in the model."""

    def __init__(
        self,
        index: int,
        module: torch.nn.Module,
        versions: Versions,
        loss_fn: Loss | None,
        autocast: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self._index, self.module, self.versions, self._loss_fn = index, module, versions, loss_fn
        self._autocast, self._device = autocast, device

    def forward(self, x: torch.Tensor, target: Any, weights: Weights | None = None) -> torch.Tensor:
        """The activation, or the loss of the last stage, by the module's weights and buffers, or by `weights` in their place."""
        mixed: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._autocast is not None:
            mixed = torch.autocast(self._device.type, dtype=self._autocast)
        with mixed:
            output = torch.func.functional_call(self.module, weights, (x,)) if weights else self.module(x)
            return self._activation(output) if self._loss_fn is None else _checks.one_loss(self._loss_fn(output, target))

    def _activation(self, output: Any) -> torch.Tensor:
        if not isinstance(output, torch.Tensor):
            raise Error(
                f"stage {self._index} returned a {type(output).__name__}, and a stage of Runtime hands on one tensor: join what it "
                "returns into one tensor, or train with chimera_pipeline.torch.pytorch_runtime, which takes several"
            )
        if not (output.is_floating_point() or output.is_complex()):
            raise Error(
                f"stage {self._index} returned a tensor of {output.dtype}, through which no gradient goes back: hand on numbers of a "
                "floating-point type"
            )
        return output

    def save(self, x: torch.Tensor, target: Any, weights: Weights, buffers: Weights | None = None) -> tuple[torch.Tensor, Saved]:
        """The output, and what its backward needs. A forward changes `buffers` in the place of the module's, if they are given."""
        leaf = x.detach()
        leaf.requires_grad_(self._index > 0 and (leaf.is_floating_point() or leaf.is_complex()))
        try:
            output = self.forward(leaf, target, {**weights, **buffers} if buffers else weights)
        except RuntimeError as error:
            if "leaf Variable that requires grad" in str(error):
                raise Error(
                    f"stage {self._index} changes a tensor in place that needs a gradient, such as its input: begin it with an operation "
                    f"that makes a new tensor (inplace=False) ({error})"
                ) from error
            raise
        if self._loss_fn is not None and not output.requires_grad and self._is_trained(leaf):
            raise Error(
                "the loss has no gradient: `loss_fn` must compute it from the output of the last stage, without `detach`, `no_grad` or "
                "a whole number such as of `argmax`"
            )
        return output.detach(), Saved(leaf, output, weights)

    def _is_trained(self, x: torch.Tensor) -> bool:
        return x.requires_grad or any(parameter.requires_grad for parameter in self.module.parameters())

    def keep(self, x: torch.Tensor, target: Any, weights: Weights) -> tuple[torch.Tensor, Kept]:
        """The output, and what a recomputation needs."""
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        kept = Kept(x.detach(), target, _random_state(self._device), weights, buffers)
        version = kept.x._version
        with torch.no_grad():
            output = self.forward(x, target, weights)
        if kept.x._version != version:
            raise Error(
                f"stage {self._index} changes its input in place, from which it is to be recomputed: begin it with an operation that makes "
                "a new tensor (inplace=False), or lower without recomputation"
            )
        return output, kept

    def recompute(self, kept: Kept) -> Saved:
        """The forward again, with the random numbers and buffers that it had. The module's stay as they are by now."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            _set_random_state(kept.random_state, self._device)
            return self.save(kept.x, kept.target, kept.weights, kept.buffers)[1]

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
