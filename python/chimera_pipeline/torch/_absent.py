"""Values that a part of a model lacks, and values that later parts lack.

A part runs the whole model's own `forward`. What modules of other parts would compute is `Absent`: it has shape, type and
device, and no numbers. What is made of an absent value is absent. What modules of this part make is `Carried`: later parts
lack it, so that it is handed to them where a block takes it.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch.utils._pytree import tree_map

from .. import Error

_LIKE_ALONE = {
    getattr(torch.Tensor, name)
    for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")
} | {torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like}
"""Functions of the shape and type of a tensor, not of its numbers."""

_NUMBERS = {
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "numpy", "__len__")
} - {torch.Tensor.__len__}


class Carried(torch.Tensor):
    """A value that later parts of the model lack. What is made of it is so, too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in _LIKE_ALONE:
            args, kwargs = tree_map(plain, (args, dict(kwargs or {})))
            return func(*args, **kwargs)
        if any(issubclass(kind, Absent) for kind in types):
            return Absent.__torch_function__(func, types, args, kwargs)
        made: Any = super().__torch_function__(func, types, args, kwargs or {})
        return made


class Absent(torch.Tensor):
    """Shape, type and device of a value that another part has."""

    at: torch.device
    source: str
    """The module that makes it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        first = next(leaf for leaf in _leaves((args, named)) if isinstance(leaf, Absent))
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return first.at
        if func in _NUMBERS:
            raise Error(
                f"what the model does depends on numbers of `{first.source}`, which another stage computes (by "
                f"`{getattr(func, '__name__', func)}`): cut it elsewhere, or without such a condition"
            )
        if func in _LIKE_ALONE:
            named.setdefault("device", first.at)
            (args, rest), at = tree_map(_on_meta, (args, named)), named["device"]
            return func(*args, **{**rest, "device": at})
        changes = getattr(func, "__name__", "").endswith("_") and not getattr(func, "__name__", "").endswith("__")
        if (changes or func is torch.Tensor.__setitem__) and args and type(args[0]) in (torch.Tensor, torch.nn.Parameter):
            raise Error(f"a tensor is changed in place by numbers of `{first.source}`, which another stage computes: cut it elsewhere")
        args, named = tree_map(_on_meta, (args, named))
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **named)
        return tree_map(lambda leaf: absent(leaf, first.at, first.source) if isinstance(leaf, torch.Tensor) else leaf, made)


def absent(like: torch.Tensor, device: torch.device, source: str) -> Absent:
    """What has the shape and type of `like`, and no numbers."""
    if isinstance(like, Absent):
        return like
    made: Absent = torch.empty(like.shape, dtype=like.dtype, device="meta").as_subclass(Absent)
    made.at, made.source = device, source
    return made


def plain(leaf: Any) -> Any:
    """A carried tensor as any other."""
    return leaf.as_subclass(torch.Tensor) if isinstance(leaf, Carried) else leaf


def carried(leaf: Any) -> Any:
    """A tensor as one that later parts lack."""
    return leaf.as_subclass(Carried) if type(leaf) in (torch.Tensor, torch.nn.Parameter) else leaf


def run_absent(module: Callable[..., Any], name: str, args: Any, kwargs: Any, device: torch.device) -> Any:
    """What a module on the meta device returns, as absent values."""
    args, kwargs = tree_map(_on_meta, (args, kwargs))
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        made = module(*args, **kwargs)
    return tree_map(lambda leaf: absent(leaf, device, name) if isinstance(leaf, torch.Tensor) else leaf, made)


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def _on_meta(leaf: Any) -> Any:
    """The leaf as meta tensors and devices are wanted."""
    if isinstance(leaf, Absent):
        return leaf.as_subclass(torch.Tensor)
    if isinstance(leaf, torch.Tensor):
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf
