"""The blocks of a model between which it can be cut, found by one small run of it."""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import FlopCounterMode

from .. import Error


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


def find(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
    """The blocks in the order in which the model runs them. Raises if there are none."""
    calls: dict[str, int] = {}
    hooks = [
        child.register_forward_pre_hook(lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1}))
        for name, child in _children_of_lists(model)
    ]
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    try:
        _run(model, args, kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    lists: dict[str, list[str]] = {}
    for name, _ in _children_of_lists(model):
        lists.setdefault(name.rpartition(".")[0], []).append(name)
    names = [name for children in lists.values() if all(calls.get(child) == 1 for child in children) for name in children]
    if not names:
        twice = [f"`{name}` {n} times" for name, n in calls.items() if n > 1]
        raise Error(
            f"{type(model).__name__} cannot be cut: it has no list of layers (nn.ModuleList, nn.Sequential) of which each runs once"
            + (f", but {', '.join(twice[:3])}, and a stage runs each of its layers once" if twice else "")
            + ": write its stages by hand, and give them to chimera_pipeline.torch.Runtime"
        )
    ordered = [name for name in calls if name in set(names)]
    units = [name for name, _ in _units(model, set(ordered), "")]
    written = [n for n, b in model.named_buffers() if b._version != versions[n] and not _is_in(n, [*ordered, *units])]
    if written:
        raise Error(
            f"the model writes the buffer `{written[0]}` outside of its layers, of which each stage has its own: write it within one"
        )
    return _measured(model, ordered, units, args, kwargs)


def _children_of_lists(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The children of all lists of modules that are within no other list."""
    for name, child in model.named_children() if not isinstance(model, nn.Sequential) else [("", model)]:
        whole = prefix + name
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(child) > 1:
            for index, part in child.named_children():
                yield (f"{whole}.{index}" if whole else index), part
        elif child is not model:
            yield from _children_of_lists(child, f"{whole}.")


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

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        starts.append(float(counter.get_total_flops()))
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        taken.append(tuple(tensors[0].shape) if tensors else ())

    def unit_runs(name: str) -> None:
        positions.setdefault(name, set()).add(len(starts) - 1)

    hooks = []
    for name in names:
        module = model.get_submodule(name)
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(lambda m, a, out, name=name: made.update({name: tree_map(_shape, out)})))
    for name in units:
        hooks.append(model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: unit_runs(name)))
    try:
        with counter:
            output = _run(model, args, kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    ends = [*starts[1:], float(counter.get_total_flops())]
    costs = [end - start for start, end in zip([0.0, *starts[1:]], ends)]
    blocks = [Block(name, made[name], shape, cost) for name, shape, cost in zip(names, taken, costs)]
    return Found(blocks, positions, output)


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad(), torch.random.fork_rng():
        return evaluated(model, args, kwargs)


def evaluated(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a model returns in evaluation mode."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        return model(*args, **kwargs)
    finally:
        for part, mode in modes:
            part.training = mode


def _shape(leaf: Any) -> Any:
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
