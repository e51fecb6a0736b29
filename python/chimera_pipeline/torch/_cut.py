"""A model cut into stages by its own lists of layers, without a line about it."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from .. import Error, Program, Timetable
from . import _blocks, _parts


class Cut:
    """A model in stages. `layout` is the number of blocks of each, `costs` are their counted operations.

    `tied` names the parameters that several stages have in common, as `Runtime` wants them.
    """

    def __init__(self, model: nn.Module, found: _blocks.Found, layout: Sequence[int]) -> None:
        self.model, self._found, self.layout = model, found, list(layout)
        self._ends = [sum(layout[: stage + 1]) for stage in range(len(layout))]
        costs = [block.cost for block in found.blocks]
        self.costs = [sum(costs[end - n : end]) for n, end in zip(layout, self._ends)]
        self.tied = self._tied()

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self.layout)

    def stages(self, stage: int) -> nn.Module:
        """The module of a stage. It shares its parameters with the model, and has their names."""
        end = self._ends[stage]
        owned = {name for name, after in self._found.units.items() if any(self._stage_of(max(k, 0)) == stage for k in after)}
        return _parts.part(self.model, self._found, owned, end - self.layout[stage], end)

    def lower(self, timetable: Timetable, **options: Any) -> Program:
        """The proven program of a timetable with as many stages, whose tied parameters it knows."""
        if timetable.stages != self.n_stages:
            raise Error(
                f"{timetable.schedule} has {timetable.stages} stages, and the model is cut into {self.n_stages}: cut it into as many"
            )
        return timetable.lower(tied=[sorted(names) for names in self.tied] or None, **options)

    def _stage_of(self, block: int) -> int:
        return next(stage for stage, end in enumerate(self._ends) if block < end)

    def _tied(self) -> list[Mapping[int, str]]:
        names: dict[int, dict[int, str]] = {}
        for stage in range(self.n_stages):
            for name, parameter in self.stages(stage).named_parameters():
                names.setdefault(id(parameter), {})[stage] = name
        return [stages for stages in names.values() if len(stages) > 1]

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Runs the stages after one another, and raises unless they return what the whole model does."""
        handed: Any = args
        for stage in range(self.n_stages):
            module = self.stages(stage)
            with torch.no_grad(), torch.random.fork_rng():
                handed = _blocks.evaluated(module, handed if isinstance(handed, tuple) else (handed,), dict(kwargs))
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
    found = _blocks.find(whole, args, kwargs)
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
    made = Cut(whole, found, layout)
    made.check(args, kwargs)
    return made


def _given(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the small run."""
    if isinstance(example, Mapping):
        return (), {**without_cache(model), **{name: value for name, value in example.items() if name != "labels"}}
    if example is not None:
        return (example if isinstance(example, tuple) else (example,)), {}
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    kwargs: dict[str, Any] = without_cache(model)
    if config is not None and name == "input_ids":
        kwargs["input_ids"] = torch.ones(1, 8, dtype=torch.int64, device=device)
        if getattr(config, "is_encoder_decoder", False):
            kwargs["decoder_input_ids"] = torch.ones(1, 8, dtype=torch.int64, device=device)
        return (), kwargs
    if config is not None and name == "pixel_values" and hasattr(config, "image_size"):
        dtype = next(parameter.dtype for parameter in model.parameters())
        size = config.image_size if isinstance(config.image_size, (tuple, list)) else (config.image_size,) * 2
        return (), {"pixel_values": torch.zeros(1, config.num_channels, *size, dtype=dtype, device=device)}
    raise Error(f"give an `example`, a small batch on which {type(model).__name__} can be tried: a dict of keyword arguments, or a tuple")


def without_cache(model: nn.Module) -> dict[str, Any]:
    """What has a model of transformers keep no keys and values for later tokens."""
    config = getattr(model, "config", None)
    return {"use_cache": False} if getattr(config, "use_cache", False) else {}

