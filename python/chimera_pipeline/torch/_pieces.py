"""What trains in a pipeline: a model in stages, whoever cut it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from torch import nn

from .. import Error, Program, Timetable

Example = Tuple[Tuple[Any, ...], Dict[str, Any]]
"""Positional and keyword arguments of a small run."""


class Pieces:
    """A model in stages, whose tensors have the names of the whole model.

    `tied` names the parameters that several stages have in common, as `Runtime` wants them.
    """

    model: nn.Module
    n_stages: int
    tied: List[Mapping[int, str]]
    costs: Optional[List[float]] = None
    """Counted operations of each stage, if they are known."""
    example: Any = None
    """Positional and keyword arguments of a small run, if there was one."""
    output: Any = None
    """The output of the whole model for the example."""

    def stages(self, stage: int) -> nn.Module:
        """The module of a stage."""
        raise NotImplementedError

    def lower(self, timetable: Timetable, **options: Any) -> Program:
        """The proven program of a timetable with as many stages, whose tied parameters it knows."""
        if timetable.stages != self.n_stages:
            raise Error(
                f"{timetable.schedule} has {timetable.stages} stages, and the model is cut into {self.n_stages}: cut it into as many"
            )
        return timetable.lower(tied=[sorted(names) for names in self.tied] or None, **options)


def tied_names(of_stages: Sequence[Mapping[str, Any]]) -> List[Mapping[int, str]]:
    """The sets of names of one parameter in several stages; `of_stages` has the same key for the same parameter."""
    names: Dict[Any, Dict[int, str]] = {}
    for stage, keys in enumerate(of_stages):
        for name, key in keys.items():
            names.setdefault(key, {})[stage] = name
    return [stages for stages in names.values() if len(stages) > 1]
