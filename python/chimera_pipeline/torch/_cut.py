"""A model cut into stages by its own lists of layers, without a line about it."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from .. import Error
from . import _blocks, _examples, _parts
from ._absent import Lacking
from ._pieces import Example, Pieces, tied_names


class Cut(Pieces):
    """A model in stages. `layout` is the number of blocks of each, `costs` are their counted operations."""

    example: Example

    def __init__(self, model: nn.Module, found: _blocks.Found, layout: Sequence[int], example: Example) -> None:
        self.model, self._found, self.layout, self.example = model, found, list(layout), example
        self._ends = [sum(layout[: stage + 1]) for stage in range(len(layout))]
        costs = [block.cost for block in found.blocks]
        self.costs = [sum(costs[end - n : end]) for n, end in zip(layout, self._ends)]
        self._wanted: dict[int, int] = {}
        self._made: set[int] = set()
        self.n_stages, self.output = len(layout), found.output
        self.tied = tied_names([{name: id(p) for name, p in self.stages(stage).named_parameters()} for stage in range(self.n_stages)])

    def stages(self, stage: int) -> nn.Module:
        """The module of a stage. It shares its parameters with the model, and has their names."""
        end = self._ends[stage]
        owned = {name for name, after in self._found.units.items() if any(self._stage_of(max(k, 0)) == stage for k in after)}
        return _parts.part(self.model, self._found, owned, end - self.layout[stage], end, self._wanted)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the last stage returns, or what a stage lacks."""
        handed: Any = args
        self._made, self._running = set(), 0
        for stage in range(self.n_stages):
            module, self._running = self.stages(stage), stage
            try:
                with torch.no_grad(), torch.random.fork_rng():
                    handed = _blocks.evaluated(module, handed if isinstance(handed, tuple) else (handed,), dict(kwargs))
            except Lacking as lacking:
                return lacking
            self._made |= _parts.run_of(module).made
        return handed

    def _learn(self, lacking: Lacking) -> bool:
        """Has stages hand on the values of which one is made that a stage lacks. False if no earlier stage has them."""
        last, sought, wanted = self._ends[self._running] - 1, [lacking.value], set()
        while sought:
            value = sought.pop()
            if value.number in self._made:
                wanted.add(value.number)
            elif value.parents:
                sought += value.parents
            else:
                return False
        is_new = any(self._wanted.get(number, -1) < last for number in wanted)
        self._wanted.update({number: max(last, self._wanted.get(number, -1)) for number in wanted})
        return is_new

    def _stage_of(self, block: int) -> int:
        return next(stage for stage, end in enumerate(self._ends) if block < end)

    def check(self) -> None:
        """Runs the stages after one another, and raises unless they return what the whole model does.

        Where a stage lacks a value that an earlier one has, all between them learn to hand it on.
        """
        handed = self._run(*self.example)
        while isinstance(handed, Lacking):
            if not self._learn(handed):
                raise handed
            handed = self._run(*self.example)
        got, wanted = (
            [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
            for output in (handed, self._found.output)
        )
        for leaf in got:
            alike = [other for other in wanted if other.shape == leaf.shape]
            if alike and not leaf.is_meta and not any(torch.allclose(leaf, other, rtol=1e-3, atol=1e-5, equal_nan=True) for other in alike):
                raise Error(
                    f"{type(self.model).__name__} in {self.n_stages} stages computes something else than as a whole: something passes from "
                    "one layer to a later one beside its arguments; write its stages by hand, for chimera_pipeline.torch.Runtime"
                )
        if not got:
            raise Error(f"the last of {self.n_stages} stages of {type(self.model).__name__} returns no tensor of numbers")


def cut(
    model: nn.Module | Sequence[nn.Module],
    n_stages: int | None = None,
    *,
    layout: Sequence[int] | None = None,
    example: Any = None,
) -> Cut:
    """Cuts a model into stages between the layers of its lists (nn.ModuleList, nn.Sequential).

    - `model` is a module of transformers, or any whose layers run one after another, or a list of modules.
    - `n_stages` are balanced by counted operations, those of embedding and head too; `layout` is the number of layers of
      each instead.
    - `example` is a small batch: keyword arguments in a dict, or positional ones in a tuple [default: a few tokens or an
      image, for models of transformers]. The model runs on it once whole and once in stages, and has to return the same.

    Raises `chimera.Error` for what it cannot cut, such as layers that run twice, or whose conditions depend on numbers of
    other stages, with what to do.
    """
    whole = model if isinstance(model, nn.Module) else nn.Sequential(*model)
    args, kwargs = _given(whole, example)
    try:
        found = _blocks.find(whole, args, kwargs, (n_stages or 1) if layout is None else sum(layout))
    except Exception as error:
        if isinstance(error, Error) or example is not None:
            raise
        raise _no_example(whole, f", since the model fails on the one made here ({type(error).__name__}: {error})") from error
    n_blocks = len(found.blocks)
    if layout is None:
        if n_stages is None:
            raise Error("give the number of stages, or a `layout`: the number of layers of each")
        if not 1 <= n_stages <= n_blocks:
            raise Error(f"{type(whole).__name__} has {n_blocks} layers, and {n_stages} stages need as many: choose 1 to {n_blocks}")
        layout = _blocks.balanced([block.cost for block in found.blocks], n_stages)
    if sum(layout) != n_blocks or min(layout) < 1 or n_stages not in (None, len(layout)):
        raise Error(
            f"`layout` is {list(layout)}, and the model has {n_blocks} layers: give each stage one or more, so that all are there"
        )
    made = Cut(whole, found, layout, (args, kwargs))
    made.check()
    return made


def _given(model: nn.Module, example: Any) -> Example:
    """Positional and keyword arguments of the small run."""
    if isinstance(example, Mapping):
        return (), {**without_cache(model), **{name: value for name, value in example.items() if name != "labels"}}
    if example is not None:
        return (example if isinstance(example, tuple) else (example,)), {}
    made = _examples.of(model)
    if made is None:
        raise _no_example(model)
    return (), {**without_cache(model), **made}


def _no_example(model: nn.Module, why: str = "") -> Error:
    return Error(
        f"give an `example`, a small batch on which {type(model).__name__} can be tried, as a dict of keyword arguments or a tuple{why}"
    )


def without_cache(model: nn.Module) -> dict[str, Any]:
    """What has a model of transformers keep no keys and values for later tokens."""
    config = getattr(model, "config", None)
    return {"use_cache": False} if getattr(config, "use_cache", False) else {}

