"""One stage of a cut model: the whole model's own `forward`, of which it runs its blocks alone."""

from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .. import Error
from ._absent import Absent, Carried, absent, carried, plain, run_absent
from ._blocks import Block, Found, Shape


class _Exit(BaseException):
    """Leaves the model's `forward` at the first block of the next stage."""

    def __init__(self, handed: tuple[Any, ...]) -> None:
        super().__init__()
        self.handed = handed


class Part:
    """The `forward` of a stage: that of the model, entered at one block and left at another."""

    def __init__(self, whole: Callable[..., Any], names: Sequence[str], first: int, end: int) -> None:
        self._whole, self._names, self.first, self.end = whole, names, first, end
        self.is_last = end == len(names)
        self.device = torch.device("cpu")
        self._received: dict[int, torch.Tensor] = {}
        self._known: list[tuple[Absent, torch.Tensor]] = []
        self._inputs: tuple[Any, ...] = ()

    def __call__(self, *handed: Any, **batch: Any) -> Any:
        if self.first == 0:
            args: tuple[Any, ...] = handed if self.is_last else tuple(map(carried, handed))
            self._inputs = tuple(_like(arg) for arg in handed)
        else:
            places, self._inputs, *tensors = handed
            self._received = dict(zip(places, tensors))
            self.device = tensors[0].device
            args = tuple(
                absent(torch.empty(like[0], dtype=like[1], device="meta"), self.device, "the input") if isinstance(like, tuple) else like
                for like in self._inputs
            )
        try:
            output = self._whole(*args, **batch)
        except _Exit as left:
            return left.handed
        finally:
            self._received, self._known = {}, []
        # What other stages have is in no output of this one, such as the state of an encoder.
        return tree_map(lambda leaf: None if isinstance(leaf, Absent) else leaf, output)

    def enter(self, index: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a block of this stage, without the marks of where they are from."""
        leaves, spec = tree_flatten((args, kwargs))
        if index == self.first:
            # The model may give a value to later blocks, too.
            received = self._received
            self._known = [(leaf, received[i]) for i, leaf in enumerate(leaves) if isinstance(leaf, Absent) and i in received]
            leaves = [received.get(i, leaf) for i, leaf in enumerate(leaves)]
        entered: tuple[Any, Any] = tree_unflatten([plain(leaf) for leaf in self._found(leaves, index)], spec)
        return entered

    def _found(self, leaves: list[Any], index: int) -> list[Any]:
        """What a block takes, with what was received for what this stage lacks."""
        found = [carried(self._value(leaf)) if isinstance(leaf, Absent) else leaf for leaf in leaves]
        for leaf in found:
            if isinstance(leaf, Absent):
                raise Error(
                    f"`{self._names[index]}` takes a value of `{leaf.source}`, which an earlier stage computes and no block hands on: cut "
                    "the model so that both are in one stage, or write its stages by hand"
                )
        return found

    def _value(self, absent: Absent) -> torch.Tensor:
        return next((value for known, value in self._known if known is absent), absent)

    def made(self, output: Any) -> Any:
        """What a module of this stage returned, marked for later ones."""
        return output if self.is_last else tree_map(carried, output)

    def leave(self, index: int, args: Any, kwargs: Any) -> Any:
        """Leaves for the next stage with all that it lacks."""
        leaves = self._found(tree_flatten((args, kwargs))[0], index)
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Carried))
        raise _Exit((places, self._inputs, *(plain(leaves[place]) for place in places)))


def _like(arg: Any) -> Any:
    return (tuple(arg.shape), arg.dtype) if isinstance(arg, torch.Tensor) else arg


class Elsewhere(nn.Module):
    """A module of another stage: it has the attributes of the original, and parameters of no memory."""

    def __init__(self, original: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["_original"], self.__dict__["forward"] = original, forward

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            raise AttributeError(name)
        return getattr(self.__dict__["_original"], name)


def part(model: nn.Module, found: Found, owned: set[str], first: int, end: int) -> nn.Module:
    """The stage that runs the blocks from `first` to before `end`, and the modules in `owned` beside them.

    It shares parameters with the model, and has their names.
    """
    made = copied(model)
    names = [block.name for block in found.blocks]
    at = Part(made.forward, names, first, end)
    for index, block in enumerate(found.blocks):
        module = made.get_submodule(block.name)
        if first <= index < end:
            _own(module, at, index)
        else:
            _replace(made, block.name, Elsewhere(copied(module, "meta"), _absent_block(at, index, block)))
    for name in found.units:
        module = made.get_submodule(name)
        if name in owned:
            _own(module, at, None)
        else:
            _replace(made, name, Elsewhere(copied(module, "meta"), _absent_unit(at, copied(module, "meta"), name)))
    made.__dict__["forward"] = at
    return made


def _own(module: nn.Module, at: Part, index: int | None) -> None:
    """Has a module of a stage take and make values as `at` says; `index` is that of a block."""
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if index is not None:
            args, kwargs = at.enter(index, args, kwargs)
        else:
            lost = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Absent)]
            if lost:
                return run_absent(copied(module, "meta", inner), lost[0].source, args, kwargs, lost[0].at)
            args, kwargs = tree_map(plain, (args, kwargs))
        return at.made(inner(*args, **kwargs))

    module.__dict__["forward"] = forward


def _absent_block(at: Part, index: int, block: Block) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if index == at.end:
            return at.leave(index, args, kwargs)
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]

        def one(leaf: Any) -> Any:
            if not isinstance(leaf, Shape):
                return leaf
            shape = tensors[0].shape if tensors and leaf.shape == block.taken else leaf.shape
            return absent(torch.empty(shape, dtype=leaf.dtype, device="meta"), at.device, block.name)

        return tree_map(one, block.made, is_leaf=lambda leaf: isinstance(leaf, Shape))

    return forward


def _absent_unit(at: Part, module: nn.Module, name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: run_absent(module, name, args, kwargs, at.device)


def copied(module: nn.Module, device: str | None = None, forward: Any = None) -> nn.Module:
    """Modules of their own around the same parameters and buffers, or around some of no memory."""
    made = copy.copy(module)
    made.__dict__ = dict(module.__dict__)
    made.__dict__.pop("forward", None)
    for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        made.__dict__[kind] = copy.copy(module.__dict__[kind])
    for kind in ("_parameters", "_buffers"):
        tensors = module.__dict__[kind]
        made.__dict__[kind] = {name: t if device is None or t is None else _moved(t, device) for name, t in tensors.items()}
    made._modules = {name: None if child is None else copied(child, device) for name, child in module._modules.items()}
    return made


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    with torch.no_grad():
        empty = torch.empty_like(tensor, device=device)
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    model.get_submodule(parent)._modules[own] = module
