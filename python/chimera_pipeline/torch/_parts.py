"""One stage of a cut model: the whole model's own `forward`, of which it runs its blocks alone."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ._absent import Absent, Carried, Lacking, Run, absent, carried, plain, run_absent, run_meta
from ._blocks import Block, Found, Shape, shape_of


class _Exit(BaseException):
    """Leaves the model's `forward` at the first block of the next stage."""

    def __init__(self, handed: tuple[Any, ...]) -> None:
        super().__init__()
        self.handed = handed


class Part:
    """The `forward` of a stage: that of the model, entered at one block and left at another.

    `wanted` are the numbers of values that blocks need to which no block hands them, each with the last block that does.
    """

    def __init__(self, whole: Callable[..., Any], names: Sequence[str], first: int, end: int, wanted: Mapping[int, int]) -> None:
        self._whole, self._names, self.first, self.end, self._wanted = whole, names, first, end, wanted
        self.device = torch.device("cpu")
        self._received: dict[int, torch.Tensor] = {}
        self._inputs: tuple[Any, ...] = ()
        self.run = Run(frozenset())
        self.loose: list[tuple[nn.Module, str, torch.Tensor]] = []
        """Parameters of no block or other module that runs, each with its module and its likeness of no memory."""

    def __call__(self, *handed: Any, **batch: Any) -> Any:
        self.run = run = Run(self._wanted.keys())
        with run:
            if self.first == 0:
                run.loose = dict(enumerate(run.numbered([carried(module._parameters[name]) for module, name, _ in self.loose])))
                self._inputs = tuple(map(_like, handed))
                args = run.numbered(tuple(map(carried, handed)))
            else:
                args = self._entered(run, handed)
            try:
                output = self._whole(*args, **batch)
            except _Exit as left:
                return left.handed
            finally:
                self._received = {}
        # What other stages have is in no output of this one, such as the state of an encoder.
        return tree_map(lambda leaf: None if isinstance(leaf, Absent) else plain(leaf), output)

    def _entered(self, run: Run, handed: tuple[Any, ...]) -> tuple[Any, ...]:
        """Takes what the stage before handed on, and returns the positional inputs of the model, as absent values."""
        keys, self._inputs, *tensors = handed
        self.device = tensors[0].device
        for of_tensor, tensor in zip(keys, tensors):
            for key in of_tensor:
                if key < 0:
                    run.values[-1 - key] = tensor
                else:
                    self._received[key] = tensor
        self.run.loose = dict(enumerate(run.numbered([absent(like, self.device, name) for _, name, like in self.loose])))

        args: tuple[Any, ...] = run.numbered(tuple(_stand_in(_shape_in(like), self.device, "the input") for like in self._inputs))
        return args

    def enter(self, index: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a block of this stage, without the marks of where they are from."""
        leaves, spec = tree_flatten((args, kwargs))
        if index == self.first:
            # The model may give a value to later blocks, too.
            for place, tensor in self._received.items():
                if isinstance(leaves[place], Absent):
                    self.run.values[leaves[place].number] = tensor
            leaves = [self._received.get(place, leaf) for place, leaf in enumerate(leaves)]
        entered: tuple[Any, Any] = tree_unflatten([plain(leaf) for leaf in self._found(leaves, index)], spec)
        return entered

    def _found(self, leaves: list[Any], index: int) -> list[Any]:
        """What a block takes, with what was received for what this stage lacks."""
        found = list(map(self.run.known, leaves))
        for leaf in found:
            if isinstance(leaf, Absent):
                raise Lacking(
                    leaf,
                    f"`{self._names[index]}` takes a value of `{leaf.source}`, which an earlier stage computes and no block hands on: cut "
                    "the model so that both are in one stage, or write its stages by hand",
                )
        return found

    def made(self, output: Any) -> Any:
        """What a module of this stage returned, marked for later ones."""
        return self.run.numbered(tree_map(carried, output))

    def leave(self, index: int, args: Any, kwargs: Any) -> Any:
        """Leaves for the next stage with all that it lacks."""
        leaves = self._found(tree_flatten((args, kwargs))[0], index)
        keys: dict[int, tuple[torch.Tensor, list[int]]] = {}
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Carried):
                keys.setdefault(id(leaf), (leaf, []))[1].append(place)
        for number, value in self.run.values.items():
            if self._wanted.get(number, -1) >= index:
                keys.setdefault(id(value), (value, []))[1].append(-1 - number)
        raise _Exit((tuple(tuple(own) for _, own in keys.values()), self._inputs, *(plain(value) for value, _ in keys.values())))


def _shape_in(like: Any) -> Any:
    """The shape of which `_like` made a plain tuple, which goes between ranks."""
    return Shape(*like) if isinstance(like, tuple) and len(like) == 2 and isinstance(like[1], torch.dtype) else like


def _like(arg: Any) -> Any:
    return (tuple(arg.shape), arg.dtype) if isinstance(arg, torch.Tensor) else arg


class Elsewhere(nn.Module):
    """A module of another stage: it has the attributes of the original, and parameters of no memory."""

    def __init__(self, original: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["_original"], self.__dict__["forward"] = original, forward
        # transformers gathers hidden states by hooks of layers.
        for hooks in ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
            self.__dict__[hooks] = original.__dict__[hooks]

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            raise AttributeError(name)
        return getattr(self.__dict__["_original"], name)


def part(model: nn.Module, found: Found, owned: set[str], first: int, end: int, wanted: Mapping[int, int]) -> nn.Module:
    """The stage that runs the blocks from `first` to before `end`, and the modules in `owned` beside them.

    `wanted` has the last block for which a value is needed, by its number.

    It shares parameters with the model, and has their names.
    """
    made = copied(model)
    names = [block.name for block in found.blocks]
    at = Part(made.forward, names, first, end, wanted)
    for index, block in enumerate(found.blocks):
        module = made.get_submodule(block.name)
        if first <= index < end:
            _own(module, at, index)
        else:
            away = copied(module, "meta").eval()
            _replace(made, block.name, Elsewhere(away, _absent_block(at, index, block, away)))
    for name in found.units:
        module = made.get_submodule(name)
        if name in owned:
            _own(module, at, None)
        else:
            _replace(made, name, Elsewhere(copied(module, "meta"), _absent_unit(at, copied(module, "meta").eval(), name)))
    _hold_loose(made, at, {*names, *found.units})
    _keep_types(made, model)
    made.__dict__["forward"] = at
    return made


def run_of(stage: nn.Module) -> Run:
    """The last run of a stage."""
    at: Any = stage.forward
    run: Run = at.run
    return run


def _hold_loose(made: nn.Module, at: Part, others: set[str], prefix: str = "") -> None:
    """Has the first stage alone hold the parameters that are in no module of `others`, which it hands on."""
    for name, child in made.named_children():
        if prefix + name not in others:
            _hold_loose(child, at, others, f"{prefix}{name}.")
    places: dict[str, int] = {}
    for name, parameter in made._parameters.items():
        if parameter is not None:
            places[name] = len(at.loose)
            at.loose.append((made, name, _moved(parameter, "meta")))
    if not places:
        return
    kind = type(made)
    if at.first:
        made._parameters = dict.fromkeys(made._parameters)

    def get(self: nn.Module, name: str) -> Any:
        place = self.__dict__["_loose"].get(name)
        return kind.__getattr__(self, name) if place is None or Run.active() is None else at.run.known(at.run.loose[place])

    made.__dict__["_loose"] = places
    made.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__getattr__": get})


def _keep_types(made: nn.Module, model: nn.Module) -> None:
    """Tells modules whose parameters are all elsewhere their type and device, which transformers asks the first parameter for."""
    for name, module in list(made.named_modules()):
        original, kind = model.get_submodule(name), type(module)
        if not isinstance(getattr(kind, "dtype", None), property) or any(p.is_floating_point() for p in module.parameters()):
            continue
        known = {key: getattr(original, key) for key in ("dtype", "device") if isinstance(getattr(kind, key, None), property)}
        module.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **known})


def _own(module: nn.Module, at: Part, index: int | None) -> None:
    """Has a module of a stage take and make values as `at` says; `index` is that of a block."""
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if index is not None:
            args, kwargs = at.enter(index, args, kwargs)
        else:
            args, kwargs = tree_map(at.run.known, (args, kwargs))
            lost = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Absent)]
            if lost:
                return run_absent(copied(module, "meta", inner).eval(), lost[0].source, args, kwargs, lost[0].at)
            args, kwargs = tree_map(plain, (args, kwargs))
        return at.made(inner(*args, **kwargs))

    module.__dict__["forward"] = forward


def _absent_block(at: Part, index: int, block: Block, module: nn.Module) -> Callable[..., Any]:
    """The forward of a block of another stage: it leaves for the next one, or returns values that are absent."""
    shapes = [leaf for leaf in tree_leaves(block.made, is_leaf=_is_shape) if _is_shape(leaf)]
    # Most layers return what they take. Others run without numbers, once for each kind of arguments.
    keeps_shape = bool(block.taken) and all(leaf.shape == block.taken for leaf in shapes)
    known: dict[Any, Any] = {}

    def forward(*args: Any, **kwargs: Any) -> Any:
        if index == at.end:
            return at.leave(index, args, kwargs)
        leaves = tree_leaves((args, kwargs))
        key = None if keeps_shape else tuple(map(_kind, leaves))
        if keeps_shape or key not in known:
            first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
            made = _with_shape(block.made, block.taken, block.taken if first is None else tuple(first.shape))
        if not keeps_shape and key not in known:
            known[key] = made
            # Where shapes depend on numbers, those of the small run stay, of which most are of no use to other stages.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                known[key] = tree_map(shape_of, run_meta(module, args, kwargs))
        made = made if keeps_shape else known[key]
        return at.run.numbered(tree_map(lambda leaf: _stand_in(leaf, at.device, block.name), made, is_leaf=_is_shape))

    return forward


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, Shape)


def _with_shape(made: Any, old: tuple[int, ...], new: tuple[int, ...]) -> Any:
    """The shapes of outputs, with another instead of that of the input."""
    return tree_map(lambda leaf: leaf._replace(shape=new) if _is_shape(leaf) and leaf.shape == old else leaf, made, is_leaf=_is_shape)


def _stand_in(leaf: Any, device: torch.device, source: str) -> Any:
    return absent(torch.empty(leaf.shape, dtype=leaf.dtype, device="meta"), device, source) if _is_shape(leaf) else leaf


def _kind(leaf: Any) -> Any:
    """What shapes of outputs may depend on."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, (int, float, str, bool, torch.dtype)) else type(leaf)


def _absent_unit(at: Part, module: nn.Module, name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: run_absent(module, name, args, kwargs, at.device)


def copied(module: nn.Module, device: str | None = None, forward: Any = None) -> nn.Module:
    """Modules of their own around the same parameters and buffers, or around some of no memory."""
    # `copy.copy` refuses modules with parametrizations, and `__new__` of a graph module leaves its forward out.
    made: nn.Module = object.__new__(type(module))
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
