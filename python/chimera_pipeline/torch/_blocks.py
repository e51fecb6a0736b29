"""The blocks of a model between which it can be cut, found by one small run of it."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import FlopCounterMode

from .. import Error


_DEEPEST = 4
"""Levels of lists within lists in which blocks are sought."""


class Block(NamedTuple):
    """A layer before which a model can be cut."""

    name: str
    made: Any
    """The values that it returned, with the shape and type of each tensor."""
    taken: tuple[int, ...]
    """The shape of the first tensor that it took."""
    cost: float
    """Operations of it and of what runs between it and the next; of the first, of what runs before it, too."""


class Shape(NamedTuple):
    """Shape and type of a tensor of the small run."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Found(NamedTuple):
    """What a small run says of a model."""

    blocks: List[Block]
    units: dict[str, set[int]]
    """Modules beside the blocks that have parameters, each with the blocks after which it runs; -1 before all."""
    output: Any


def find(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: int) -> Found:
    """The blocks in the order in which the model runs them. Raises if there are none.

    Where the lists of layers have fewer than `wanted`, blocks are the layers of lists within these layers.
    """
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    calls = _calls(model, args, kwargs)
    names: list[str] = []
    for level in range(_DEEPEST):
        lists: dict[str, list[str]] = {}
        for name, of_list in _children_of_lists(model, level):
            lists.setdefault(of_list, []).append(name)
        found = [name for children in lists.values() if all(calls.get(child) == 1 for child in children) for name in children]
        if len(found) > len(names):
            names = found
        if len(names) >= max(wanted, 2):
            break
    if len(names) < 2:
        raise _no_blocks(model, calls)
    ordered = [name for name in calls if name in set(names)]
    units = [name for name, _ in _units(model, set(ordered), "")]
    written = [n for n, b in model.named_buffers() if b._version != versions[n] and not _is_in(n, [*ordered, *units])]
    if written:
        raise Error(
            f"the model writes the buffer `{written[0]}` outside of its layers, of which each stage has its own: write it within one"
        )
    return _measured(model, ordered, units, args, kwargs)


def _calls(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
    """How often the model runs each module within its lists, in the order in which they begin."""
    calls: dict[str, int] = {}
    names = {name for level in range(_DEEPEST) for name, _ in _children_of_lists(model, level, least=1)}

    def before(name: str, *_: Any) -> None:
        calls[name] = calls.get(name, 0) + 1

    with _watched(model, names, before):
        _run(model, args, kwargs)
    return calls


def _no_blocks(model: nn.Module, calls: dict[str, int]) -> Error:
    twice = [f"`{name}` {n} times" for name, n in calls.items() if n > 1]
    reason = "it has no list of layers (nn.ModuleList, nn.Sequential) of which each runs once"
    if twice:
        reason = f"it runs {', '.join(twice[:3])}, and a stage runs each of its layers once"
    return Error(
        f"{type(model).__name__} cannot be cut: {reason}: write its stages by hand, and give them to chimera_pipeline.torch.Runtime"
    )


def _children_of_lists(model: nn.Module, level: int, prefix: str = "", least: int = 2) -> Iterator[tuple[str, str]]:
    """The children of all lists of `least` modules or more, each with its list.

    `level` 0 are those that are within no other list. With each level more a child makes way for the lists within it, if it has some.
    """
    for name, child in model.named_children() if not isinstance(model, nn.Sequential) else [("", model)]:
        whole = (prefix + name).strip(".")
        if not (isinstance(child, (nn.ModuleList, nn.Sequential)) and len(child) >= least):
            if child is not model:
                yield from _children_of_lists(child, level, f"{whole}.", least)
            continue
        for index, part in child.named_children():
            inner = f"{whole}.{index}" if whole else index
            # A list of lists runs none of these itself.
            within = [(f"{inner}.{i}", inner) for i, _ in part.named_children()] if isinstance(part, nn.ModuleList) else []
            if level and not within:
                within = list(_children_of_lists(part, level - 1, f"{inner}.", least))
            yield from within or [(inner, whole)]


def _units(module: nn.Module, blocks: set[str], prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules with parameters that neither are blocks nor have some within."""
    for name, child in module.named_children():
        whole = prefix + name
        if whole in blocks:
            continue
        if any(block.startswith(f"{whole}.") for block in blocks):
            yield from _units(child, blocks, f"{whole}.")
        elif next(child.parameters(), None) is not None:
            yield whole, child


def _measured(model: nn.Module, names: list[str], units: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
    """Runs the model, and counts the operations of its blocks."""
    starts: list[float] = []
    taken: list[tuple[int, ...]] = []
    made: dict[str, Any] = {}
    positions: dict[str, set[int]] = {}
    counter = FlopCounterMode(display=False)

    def before(name: str, args: Any, kwargs: Any) -> None:
        if name not in blocks:
            positions.setdefault(name, set()).add(len(starts) - 1)
            return
        starts.append(float(counter.get_total_flops()))
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        taken.append(tuple(tensors[0].shape) if tensors else ())

    blocks = set(names)
    with _watched(model, [*names, *units], before, lambda name, out: made.update({name: tree_map(shape_of, out)})), counter:
        output = _run(model, args, kwargs)
    ends = [*starts[1:], float(counter.get_total_flops())]
    costs = [end - start for start, end in zip([0.0, *starts[1:]], ends)]
    found = [Block(name, made[name], shape, cost) for name, shape, cost in zip(names, taken, costs)]
    return Found(found, {name: positions[name] for name in units if name in positions}, output)


@contextlib.contextmanager
def _watched(
    model: nn.Module,
    names: Iterable[str],
    before: Callable[[str, Any, Any], None],
    after: Callable[[str, Any], None] = lambda name, made: None,
) -> Iterator[None]:
    """Calls `before` and `after` each forward of these modules. Some models call `forward` itself, which runs no hooks."""

    def watching(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            before(name, args, kwargs)
            made = inner(*args, **kwargs)
            after(name, made)
            return made

        return forward

    watched: list[tuple[nn.Module, Any]] = []
    try:
        for name in names:
            module = model.get_submodule(name)
            watched.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = watching(name, module.forward)
        yield
    finally:
        for module, own in reversed(watched):
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad(), torch.random.fork_rng():
        return evaluated(model, args, kwargs)


def evaluated(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output of a model in evaluation mode."""
    modes = [(part, part.training) for part in model.modules()]
    # The counter of operations asks arguments that need gradients for a graph, which no parameter has here.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        return model(*args, **kwargs)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for part, mode in modes:
            part.training = mode


def shape_of(leaf: Any) -> Any:
    """Shape and type of a tensor; any other leaf as it is."""
    return Shape(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def _is_in(name: str, modules: list[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


def balanced(costs: list[float], n_stages: int) -> list[int]:
    """Number of blocks of each stage: none has none, and the sum of the squares of their costs is the least."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + max(cost, 1.0))
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for stage in range(1, n_stages + 1):
        row: dict[int, tuple[float, int]] = {}
        for end in range(stage, len(costs) - (n_stages - stage) + 1):
            ways = ((total + (sums[end] - sums[start]) ** 2, start) for start, (total, _) in best[-1].items() if start < end)
            row[end] = min(ways)
        best.append(row)
    layout, end = [], len(costs)
    for stage in range(n_stages, 0, -1):
        start = best[stage][end][1]
        layout.append(end - start)
        end = start
    return layout[::-1]
