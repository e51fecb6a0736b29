"""Timetables of one's own."""

from __future__ import annotations

import json
from typing import Any, Sequence, Tuple, Union

from ._core import Timetable, parse

Op = Tuple[str, int, int, Union[int, Sequence[int]]]
Cell = Union[Op, Sequence[Op]]


def timetable(
    placement: Sequence[Sequence[int]],
    rows: Sequence[Sequence[Cell]],
    *,
    schedule: str = "mine",
    micro_batches: int | None = None,
    units_per_micro: int = 1,
) -> Timetable:
    """The timetable with these rows.

    `placement` has the worker of each stage, for each pipe. A cell is an op `(kind, pipe, stage, micro_batches)`, or a
    list of two ops that run as a pair. Kinds are `F`, `B`, `I`, `W` and `R`; `micro_batches` is one number or several.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    units = [unit for row in cells for cell in row for op in cell.get("pair", [cell]) for unit in op["micro_batches"]]
    file = {
        "schedule": schedule,
        "depth": len(rows),
        "stages": len(placement[0]) if placement else 0,
        "pipes": len(placement),
        "micro_batches": (max(units, default=-1) + units_per_micro) // units_per_micro
        if micro_batches is None
        else micro_batches,
        "unit": 1 / units_per_micro,
        "placement": [list(pipe) for pipe in placement],
        "rows": cells,
    }
    return parse(json.dumps(file), format="json")


def _cell(cell: Any) -> dict[str, Any]:
    if cell and isinstance(cell[0], str):
        return _op(cell)
    return {"pair": [_op(op) for op in cell]} if len(cell) != 1 else _op(cell[0])


def _op(op: Op) -> dict[str, Any]:
    kind, pipe, stage, micro_batches = op
    ids = [micro_batches] if isinstance(micro_batches, int) else list(micro_batches)
    return {"kind": kind, "pipe": pipe, "stage": stage, "micro_batches": ids}
