"""What a runtime of modules can do: which programs and options, and which parameters are tied."""

from __future__ import annotations

import math
import numbers
from typing import Any, Mapping, Sequence

import torch

from .. import Error, Program

Tied = Sequence[Mapping[int, str]]
"""The parameter of each stage, for each set of tied stages."""

_TAGGED = ("gloo", "mpi")
"""Backends whose messages have tags."""


def check_program(program: Program, file: dict[str, Any], n_ranks: int, tied: Tied, scaled_by: str | None) -> None:
    """Raises for a program that modules cannot carry out; `scaled_by` is the option that scales gradients, if any does."""
    depth = program.depth
    if n_ranks % depth:
        raise Error(f"{n_ranks} ranks do not make groups of {depth} workers: start a multiple of {depth}")
    if "graph" in file:
        raise Error(
            "modules here are a chain, from one tensor to one tensor, and the program's stages are a graph: lower a timetable "
            "without `with_graph`"
        )
    if any(row["lane"] == "moves" for row in file["rows"]):
        raise Error("modules here keep their activations where they are, and the program moves some: leave bpipe and offload out")
    if "slices" in file:
        raise Error(
            f"modules here run whole sequences, and {program.schedule} cuts them into {file['slices']} slices: choose "
            "another schedule"
        )
    if file["update"] in ("newest", "predicted"):
        raise Error(
            f"the backwards of {program.schedule} read newer weights than their forwards, and autograd keeps those of a forward: "
            "choose another schedule, such as pipedream or pipedream-2bw"
        )
    if not file["barrier"] and scaled_by is not None:
        if file["update"] == "flush":
            raise Error(
                "without the barrier weights change before gradients are scaled: lower with barrier=True, or leave "
                f"`{scaled_by}` out"
            )
        raise Error(
            f"{program.schedule} updates weights while micro-batches are on their way, before the gradients of all "
            f"ranks are known, so that it cannot scale them: leave `{scaled_by}` out, or choose a synchronous schedule"
        )
    sets = [bucket["stages"] for bucket in tied_buckets(program, file)]
    if [sorted(names) for names in tied] != [sorted(set(stages)) for stages in sets]:
        raise Error(
            f"the program ties the stages {sets}, and `tied` names {[sorted(names) for names in tied]}: for each set in `lower` give "
            "the parameter of each of its stages, in the same order"
        )


def check_counting(program: Program, file: dict[str, Any], normalize: Any) -> None:
    """Raises where losses are divided by a count of the whole batch, and updates have parts of it."""
    if normalize != "mean" and file["update"] != "flush":
        raise Error(
            f"{program.schedule} updates weights while micro-batches are on their way, each time by a part of the batch, and `normalize` "
            "counts the whole: leave it out, or choose a synchronous schedule"
        )


def tied_buckets(program: Program, file: dict[str, Any]) -> list[dict[str, Any]]:
    """The buckets of tied stages, which come after one for each stage."""
    buckets: list[dict[str, Any]] = file["buckets"]
    return [bucket for bucket in buckets if bucket["update"] == 0][program.stages :]


def is_in_one_order(asked: bool | None, backend: str) -> bool:
    """Whether messages go without tags, in the one order of the program."""
    if asked is None:
        return backend not in _TAGGED
    if not asked and backend == "nccl":
        raise Error("NCCL's messages have no tags, so that tensors would be taken for others: leave `in_one_order` out")
    return asked


def check_numbers(clip: Any, autocast: Any, loss_scale: Any) -> None:
    """Raises for numbers that scale nothing."""
    if clip is not None and not (_is_number(clip) and clip > 0):
        raise Error(f"`clip` is {clip!r}: choose a number above 0, or None")
    if loss_scale != "dynamic" and not (_is_number(loss_scale) and 0 < loss_scale < math.inf):
        raise Error(f'`loss_scale` is {loss_scale!r}: choose a number above 0, or "dynamic"')
    if autocast is not None and not (isinstance(autocast, torch.dtype) and autocast.is_floating_point):
        raise Error(f"`autocast` is {autocast!r}: choose torch.bfloat16 or torch.float16, or None")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def tie(made: dict[int, torch.nn.Module], tied: Tied) -> None:
    """Makes one parameter of those that tied stages of this worker have, under all names that it has in each."""
    for names in tied:
        here = [made[stage].get_parameter(names[stage]) for stage in sorted(names) if stage in made]
        for module in made.values():
            for part in module.modules():
                for name, parameter in part._parameters.items():
                    if any(parameter is other for other in here[1:]):
                        part._parameters[name] = here[0]
