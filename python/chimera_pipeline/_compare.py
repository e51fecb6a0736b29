"""Schedules side by side, on one model."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from typing import Any, NamedTuple

from ._core import Error, Program, Refusal, Timetable, Unfit, parse, schedule, schedules

_HEADS = ("makespan", "speed-up", "bubble ratio", "peak", "copies", "messages")


class Entry(NamedTuple):
    """The figures of a schedule, of one step."""

    name: str
    makespan: float
    speed_up: float | None
    bubble_ratio: float
    peak: float
    copies: int
    messages: int


class Comparison(NamedTuple):
    """Schedules that ran, the fastest first, and why others could not."""

    entries: list[Entry]
    left_out: dict[str, str]

    def __str__(self) -> str:
        width = max((len(entry.name) for entry in self.entries), default=0)
        lines = [" " * width + "".join(f"  {head:>12}" for head in _HEADS)]
        for name, *figures in self.entries:
            shown = ("-" if x is None else f"{x:.3f}".rstrip("0").rstrip(".") for x in figures)
            lines.append(f"{name:{width}}" + "".join(f"  {x:>12}" for x in shown))
        lines += [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)


def compare(
    *names: str | Timetable,
    depth: int = 4,
    micro_batches: int | None = None,
    memory_cap: float | None = None,
    **options: Any,
) -> Comparison:
    """Compares schedules, or all of them, on one model.

    A name may have options of its own, as on the command line: `"chimera --scaling doubling"`; what has the name of an
    earlier one is numbered. Times are those of a D-th of the model: a schedule with v stages per worker cuts each D-th
    into v. Speed-up is over 1F1B with as many workers and micro-batches.
    """
    times = {key: options.pop(key) for key in list(options) if key in _TIMES}
    shape = {"depth": depth, "micro_batches": micro_batches, **options}
    wanted = names or [f"{name} {v}".strip() for name, s in schedules().items() for v in s["variants"]]
    entries: dict[str, Entry] = {}
    left_out: dict[str, str] = {}
    seen: dict[str, str] = {}

    @functools.cache
    def of_1f1b(depth: int, micro_batches: int) -> float:
        its_shape = {**shape, "depth": depth, "micro_batches": micro_batches, "in_turn": 1}
        return _run(_made("1f1b", its_shape, times), "1f1b", None, times)[1].makespan

    for name in wanted:
        if not isinstance(name, (str, Timetable)):
            raise TypeError(f"{name!r} is neither the name of a schedule nor a timetable")
        label = _unused(name if isinstance(name, str) else name.schedule, {*entries, *left_out})
        try:
            made = _made(name, shape, times) if isinstance(name, str) else name
            program, entry = _run(made, label, memory_cap, times)
        except (Unfit, Refusal) as error:
            left_out[label] = str(error).splitlines()[0].split(": ", 1)[-1]
            continue
        like = seen.setdefault(program.fingerprint, label)
        if like != label:
            left_out[label] = f"as {like}"
        else:
            baseline = of_1f1b(made.depth, made.micro_batches)
            entries[label] = entry._replace(speed_up=baseline / entry.makespan if entry.makespan else None)
    ranked = sorted(entries.values(), key=lambda entry: (entry.makespan, entry.peak))
    return Comparison(ranked, left_out)


_TIMES = ("forward", "backward", "input", "weight", "pair", "recompute_time", "message", "transfer")


def _unused(label: str, used: set[str]) -> str:
    """The label, or with the first number from 2 that makes it another than those used."""
    labels = (label if number == 1 else f"{label} ({number})" for number in itertools.count(1))
    return next(label for label in labels if label not in used)


def _run(made: Timetable, label: str, memory_cap: float | None, times: dict[str, Any]) -> tuple[Program, Entry]:
    program = made.lower(memory_cap=memory_cap, of_model=True, **times)
    timeline = program.simulate()
    steps = program.micro_batches // made.micro_batches
    versions = max(program.weight_versions, default=1)
    return program, Entry(
        label,
        timeline.makespan / steps,
        None,
        timeline.bubble_ratio,
        max(program.peaks),
        len(program.replicas(0)) * versions,
        program.messages // steps,
    )


def _made(text: str, shape: dict[str, Any], times: dict[str, Any]) -> Timetable:
    try:
        name, *words = shlex.split(text)
    except ValueError:
        raise Error(f"`{text}` is no name of a schedule, with options or without") from None
    own: dict[str, Any] = {}
    while words:
        option = words.pop(0)
        option, _, value = option.partition("=")
        key = option[2:].replace("-", "_")
        if option in ("--split-backward", "--bpipe") and not value:
            own[key] = True
            continue
        if not option.startswith("--") or not (value or words):
            raise Error(f"`{text}`: after the name come options with their values, such as --pipes 4")
        value = value or words.pop(0)
        own[key] = int(value) if re.fullmatch("-?[0-9]+", value) else value
    passes = {key: own.pop(key) for key in ("recompute", "hoist", "split_backward", "bpipe", "offload") if key in own}
    made = schedule(name, of_model=True, **{**shape, **own}, **times)
    return made.passes(of_model=True, **passes, **times) if passes else made
