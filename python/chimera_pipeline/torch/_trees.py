"""Values of stages: tensors by themselves, or within tuples, lists, dicts and what PyTorch knows as trees."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .. import Error


class Like(NamedTuple):
    """Shape and type of a tensor, and whether a gradient comes back for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.dtype}"


class Around(NamedTuple):
    """What is around the tensors of a value: its tree, and the leaves that are no tensors."""

    spec: Any
    others: tuple[Any, ...]
    """The leaves, with `_HERE` where a tensor is."""


class _Here:
    """Stands for a tensor among other leaves."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Here)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "tensor"


_HERE = _Here()


class Value(NamedTuple):
    """What one stage hands to the next for one unit, or the inputs of a unit."""

    tensors: list[torch.Tensor]
    around: Around | None
    """None for a single tensor."""
    needs_grad: tuple[bool, ...]
    """Whether a gradient comes back, for each tensor."""

    def whole(self) -> Any:
        """The tensors within what is around them."""
        return joined(self.tensors, self.around)

    def likes(self) -> tuple[Like, ...]:
        """Shapes and types of the tensors."""
        return tuple(Like(tuple(t.shape), t.dtype, g) for t, g in zip(self.tensors, self.needs_grad))


def taken_apart(value: Any) -> tuple[list[torch.Tensor], Around | None]:
    """The tensors of a value, and what is around them."""
    if isinstance(value, torch.Tensor):
        return [value], None
    leaves, spec = tree_flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return tensors, Around(spec, tuple(_HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves))


def joined(tensors: list[torch.Tensor], around: Around | None) -> Any:
    """The value of which `taken_apart` gave these."""
    if around is None:
        return tensors[0]
    rest = iter(tensors)
    return tree_unflatten([next(rest) if isinstance(leaf, _Here) else leaf for leaf in around.others], around.spec)


def mapped(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The value with `function` of each of its tensors in its place."""
    tensors, around = taken_apart(value)
    return joined([function(tensor) for tensor in tensors], around)


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether numbers of this type have gradients."""
    has: bool = tensor.is_floating_point() or tensor.is_complex()
    return has


def is_plain(leaf: Any) -> bool:
    """Whether a leaf other than a tensor can be sent to another rank."""
    return leaf is None or isinstance(leaf, (_Here, bool, int, float, complex, str, bytes, torch.dtype, torch.Size))


def check_plain(around: Around | None, who: str) -> None:
    """Raises where a value has leaves that are neither tensors nor plain."""
    for leaf in () if around is None else around.others:
        if not is_plain(leaf):
            raise Error(
                f"{who} a {type(leaf).__name__} within a {_word(around)}: hand on tensors, numbers, strings and None, by themselves "
                "or in tuples, lists and dicts"
            )


def _word(around: Around | None) -> str:
    kind = getattr(getattr(around, "spec", None), "type", None)
    return getattr(kind, "__name__", "value")


def digest(of: Any) -> int:
    """A number below 2^56 that is the same on all ranks for what has the same words."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=7).digest(), "big")


def signature(tensors: list[torch.Tensor], around: Around | None) -> tuple[Any, ...]:
    """All of a value but its numbers, as words that are the same on all ranks."""
    return tuple((tuple(t.shape), str(t.dtype)) for t in tensors), None if around is None else (str(around.spec), around.others)
