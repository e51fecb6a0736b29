"""One stage of a worker: forward, recomputation and the parts of a backward, of one unit of a micro-batch."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

import torch

from .. import Error
from . import _autograd, _checks, _trees
from ._auxiliary import Collected
from ._trees import Value
from ._versions import Versions, Weights

Loss = Callable[[Any, Any], torch.Tensor]
Gradients = List[torch.Tensor]


class Unit(NamedTuple):
    """What a forward of a unit reads beside the weights."""

    handed: Value
    """What the stage before made; of the first stage the positional arguments."""
    keywords: Mapping[str, Any]
    """The keyword arguments of the step, of which a stage takes those that it knows."""
    target: Any
    signature: Any
    """Units of equal signature have the same shapes and types."""


class Saved(NamedTuple):
    """What a backward needs of its forward."""

    inputs: list[torch.Tensor]
    """Those that need gradients."""
    outputs: list[torch.Tensor]
    """Those that a gradient comes back for, or the loss."""
    needs_grad: tuple[bool, ...]
    weights: Weights
    auxiliary: list[torch.Tensor]
    """Losses that are added to that of the model."""


class Kept(NamedTuple):
    """What a recomputation needs of its forward."""

    unit: Unit
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
        self.index, self.module, self.versions, self._loss_fn = index, module, versions, loss_fn
        self._autocast, self._device = autocast, device
        self._keywords = Keywords(module)
        self.auxiliary = Collected()
        self._needs_grad: Dict[Any, tuple[bool, ...]] = {}

    def forward(self, unit: Unit, weights: Weights | None = None) -> Any:
        """What the module returns, by its own weights and buffers, or by `weights` in their place."""
        args, named = called(unit.handed.whole())
        if unit.keywords:
            named = {**self._keywords.chosen(unit.keywords, self.index == 0), **named}
        with self._mixed():
            return torch.func.functional_call(self.module, weights, args, named) if weights else self.module(*args, **named)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        """The loss of the last stage's output."""
        assert self._loss_fn is not None, "the last stage has a loss"
        with self._mixed():
            return _checks.one_loss(self._loss_fn(output, target))

    def _mixed(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast is None:
            return contextlib.nullcontext()
        mixed: contextlib.AbstractContextManager[Any] = torch.autocast(self._device.type, dtype=self._autocast)
        return mixed

    def made(self, output: Any) -> tuple[list[torch.Tensor], _trees.Around | None]:
        """The tensors of what the module returned, and what is around them."""
        tensors, around = _trees.taken_apart(output)
        _trees.check_plain(around, f"stage {self.index} returned")
        if not any(_trees.has_gradient(tensor) for tensor in tensors):
            what = f"a tensor of {tensors[0].dtype}" if around is None else "no tensor of a floating-point type"
            raise Error(
                f"stage {self.index} returned {what}, through which no gradient goes back: hand on numbers of a floating-point type"
            )
        return tensors, around

    def save(self, unit: Unit, weights: Weights, buffers: Weights | None = None) -> tuple[Value, Saved]:
        """The output, and what its backward needs.

        A forward that is done again is given the `buffers` that it changes instead of the module's.
        """
        leaves = [tensor.detach() for tensor in unit.handed.tensors]
        inputs = [leaf.requires_grad_() for leaf, needs in zip(leaves, unit.handed.needs_grad) if needs]
        unit = unit._replace(handed=unit.handed._replace(tensors=leaves))
        try:
            with self.auxiliary.collecting(again=buffers is not None) as losses:
                output = self.forward(unit, {**weights, **buffers} if buffers else weights)
            if self._loss_fn is not None:
                loss = self._trained_loss(output, unit.target, inputs)
                return Value([loss.detach()], None, (True,)), Saved(inputs, [loss], (True,), weights, losses)
        except RuntimeError as error:
            if "leaf Variable that requires grad" in str(error):
                raise Error(
                    f"stage {self.index} changes a tensor in place that needs a gradient, such as its input: begin it with an operation "
                    f"that makes a new tensor (inplace=False) ({error})"
                ) from error
            raise
        tensors, around = self.made(output)
        # For a single one it comes back in any case: a recomputed stage cannot tell before.
        needs_grad = (True,) if around is None else tuple(tensor.requires_grad for tensor in tensors)
        value = Value([tensor.detach() for tensor in tensors], around, needs_grad)
        return value, Saved(inputs, [tensor for tensor, needs in zip(tensors, needs_grad) if needs], needs_grad, weights, losses)

    def _trained_loss(self, output: Any, target: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
        loss = self.loss(output, target)
        if not loss.requires_grad and (inputs or any(parameter.requires_grad for parameter in self.module.parameters())):
            raise Error(
                "the loss has no gradient: `loss_fn` must compute it from the output of the last stage, without `detach`, `no_grad` or "
                "a whole number such as of `argmax`"
            )
        return loss

    def keep(self, unit: Unit, weights: Weights) -> tuple[Value, Kept]:
        """The output, and what a recomputation needs."""
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        detached = unit._replace(handed=unit.handed._replace(tensors=[tensor.detach() for tensor in unit.handed.tensors]))
        kept = Kept(detached, _random_state(self._device), weights, buffers)
        versions = [tensor._version for tensor in detached.handed.tensors]
        with torch.no_grad():
            with self.auxiliary.collecting():
                output = self.forward(unit, weights)
            value = self._loss_value(output, unit.target) if self._loss_fn is not None else None
        if [tensor._version for tensor in detached.handed.tensors] != versions:
            raise Error(
                f"stage {self.index} changes its input in place, from which it is to be recomputed: begin it with an operation that makes "
                "a new tensor (inplace=False), or lower without recomputation"
            )
        if value is None:
            tensors, around = self.made(output)
            value = Value(tensors, around, (True,) if around is None else self._that_need_gradients(kept))
        return value, kept

    def _loss_value(self, output: Any, target: Any) -> Value:
        return Value([self.loss(output, target)], None, (True,))

    def _that_need_gradients(self, kept: Kept) -> tuple[bool, ...]:
        """Which of several outputs need gradients, which a forward without a graph does not know: the first of a kind runs again."""
        known = self._needs_grad.get(kept.unit.signature)
        if known is None:
            known = self._needs_grad[kept.unit.signature] = self.recompute(kept).needs_grad
        return known

    def recompute(self, kept: Kept) -> Saved:
        """The forward again, with the random numbers and buffers that it had. The module's stay as they are by now."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            _set_random_state(kept.random_state, self._device)
            # It changes buffers that it is given.
            buffers = {name: buffer.clone() for name, buffer in kept.buffers.items()}
            return self.save(kept.unit, kept.weights, buffers)[1]

    def backward(self, saved: Saved, grads: Gradients, update: int) -> Gradients:
        """Adds the gradients of the weights to those of an update; returns the gradients of the inputs."""
        made = _autograd.backward(self._pairs(saved, grads), saved.inputs)
        self.versions.collect(saved.weights, update)
        return made

    def _pairs(self, saved: Saved, grads: Gradients) -> _autograd.Pairs:
        """All that gradients begin at, each with its gradient."""
        seeds = [torch.full_like(loss, self.auxiliary.scale) for loss in saved.auxiliary]
        return [*zip(saved.outputs, grads), *zip(saved.auxiliary, seeds)]

    def backward_input(self, saved: Saved, grads: Gradients, update: int) -> tuple[Gradients, Callable[[], None]]:
        """Returns the gradients of the inputs, and what adds the gradients of the weights."""
        leaves = list(saved.weights.values()) or self.module.parameters()
        made, add = _autograd.backward_input(self._pairs(saved, grads), saved.inputs, leaves)

        def add_weight_gradients() -> None:
            add()
            self.versions.collect(saved.weights, update)

        return made, add_weight_gradients

    def check_keywords(self, given: Mapping[str, Any]) -> None:
        """Raises if the module, as the first stage, takes one of these not."""
        self._keywords.check(given)

    def forget(self) -> None:
        """Forgets what it learnt of shapes."""
        self._needs_grad.clear()


class Keywords:
    """The keyword arguments that a module takes."""

    def __init__(self, module: torch.nn.Module) -> None:
        parameters = inspect.signature(module.forward).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises for a name that the module does not take."""
        for name in given:
            if not self._takes_all and name not in self._names:
                raise Error(f"the first stage takes no `{name}`: its `forward` has {', '.join(sorted(self._names)) or 'no arguments'}")

    def chosen(self, given: Mapping[str, Any], is_first: bool) -> dict[str, Any]:
        """Those of a step that the module takes. The first stage gets all."""
        return {name: value for name, value in given.items() if is_first or self._takes_all or name in self._names}


def called(handed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a module is called with: a tuple is several, a dict those by name, and all else is one."""
    if isinstance(handed, dict):
        return (), dict(handed)
    return (tuple(handed) if isinstance(handed, tuple) else (handed,)), {}


def _random_state(device: torch.device) -> Any:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: Any, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
