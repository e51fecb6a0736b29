"""Values that a part of a model lacks, and values that later parts lack.

A part runs the whole model's own `forward`. What modules of other parts would compute is `Absent`: it has shape, type and
device, and no numbers. What is made of an absent value is absent. What modules of this part make is `Carried`: later parts
lack it, so that it is handed to them where a block takes it. All parts number these values alike, so that a value can also be
handed over several parts.
"""

from __future__ import annotations

import threading
from typing import AbstractSet, Any, Callable, Mapping

import torch
from torch.utils._pytree import tree_flatten, tree_map

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


class Run:
    """One run of a part: the values that later parts lack, by number.

    Every module and operation that makes such a value counts, here and where it is absent.
    """

    _active = threading.local()

    def __init__(self, wanted: AbstractSet[int]) -> None:
        self.values: dict[int, torch.Tensor] = {}
        self.made: set[int] = set()
        """Numbers of all values that this part has."""
        self.loose: dict[int, Any] = {}
        """Parameters of no module that runs, by place."""
        self._wanted, self._n = wanted, 0

    @staticmethod
    def active() -> Run | None:
        """The run that goes on in this thread."""
        return getattr(Run._active, "run", None)

    def __enter__(self) -> Run:
        self._before, Run._active.run = Run.active(), self
        return self

    def __exit__(self, *_: object) -> None:
        Run._active.run = self._before

    def numbered(self, made: Any) -> Any:
        """Gives the tensors of what was made the next numbers."""
        for leaf in tree_flatten(made)[0]:
            if isinstance(leaf, Absent):
                leaf.number = self._n
            elif isinstance(leaf, Carried):
                self.made.add(self._n)
                if self._n in self._wanted:
                    self.values[self._n] = leaf
            self._n += isinstance(leaf, (Absent, Carried))
        return made

    def known(self, leaf: Any) -> Any:
        """The value of an absent leaf, if it was handed here."""
        return carried(self.values[leaf.number]) if isinstance(leaf, Absent) and leaf.number in self.values else leaf


def _numbered(made: Any) -> Any:
    run = Run.active()
    return made if run is None else run.numbered(made)


class Lacking(Error):
    """A part needs a value that no block hands to it."""

    def __init__(self, value: Absent, reason: str) -> None:
        super().__init__(reason)
        self.value = value


class Carried(torch.Tensor):
    """A value that later parts of the model lack. What is made of it is so, too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in _LIKE_ALONE:
            args, kwargs = tree_map(plain, (args, dict(kwargs or {})))
            return func(*args, **kwargs)
        if any(issubclass(kind, Absent) for kind in types):
            return Absent.__torch_function__(func, types, args, kwargs)
        return _numbered(super().__torch_function__(func, types, args, kwargs or {}))


class Absent(torch.Tensor):
    """Shape, type and device of a value that another part has."""

    at: torch.device
    source: str
    """The module that makes it."""
    number: int = -1
    parents: tuple[Absent, ...] = ()
    """The absent values that it is made of."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        lacked = [leaf for leaf in _leaves((args, named)) if isinstance(leaf, Absent)]
        first = lacked[0]
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return first.at
        if func in _LIKE_ALONE:
            named.setdefault("device", first.at)
            (args, rest), at = tree_map(_on_meta, (args, named)), named["device"]
            return func(*args, **{**rest, "device": at})
        run = Run.active()
        if run is not None and all(leaf.number in run.values for leaf in lacked):
            args, named = tree_map(run.known, (args, named))
            return Carried.__torch_function__(func, (Carried,), args, named)
        if func in _NUMBERS:
            raise Lacking(
                first,
                f"what the model does depends on numbers of `{first.source}`, which another stage computes (by "
                f"`{getattr(func, '__name__', func)}`): cut it elsewhere, or without such a condition",
            )
        changes = getattr(func, "__name__", "").endswith("_") and not getattr(func, "__name__", "").endswith("__")
        if (changes or func is torch.Tensor.__setitem__) and args and type(args[0]) in (torch.Tensor, torch.nn.Parameter):
            reason = f"a tensor is changed in place by numbers of `{first.source}`, which another stage computes: cut it elsewhere"
            raise Lacking(first, reason)
        args, named = tree_map(_on_meta, (args, named))
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **named)
        return _numbered(tree_map(lambda leaf: _made_of(lacked, leaf) if isinstance(leaf, torch.Tensor) else leaf, made))


def _made_of(lacked: list[Absent], leaf: torch.Tensor) -> Absent:
    made = absent(leaf, lacked[0].at, lacked[0].source)
    made.parents = tuple(lacked)
    return made


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


def run_meta(module: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a module on the meta device returns."""
    args, kwargs = tree_map(_on_meta, (args, kwargs))
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return module(*args, **kwargs)


def run_absent(module: Callable[..., Any], name: str, args: Any, kwargs: Any, device: torch.device) -> Any:
    """What a module on the meta device returns, as absent values."""
    made = run_meta(module, args, kwargs)
    return _numbered(tree_map(lambda leaf: absent(leaf, device, name) if isinstance(leaf, torch.Tensor) else leaf, made))


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
