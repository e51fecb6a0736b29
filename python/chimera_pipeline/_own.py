"""Timetables of one's own."""

from __future__ import annotations

import json
import operator
from typing import Any, Dict, Sequence, Tuple, Union

from ._core import Error, Timetable, parse

Op = Tuple[str, int, int, Union[int, Sequence[int]]]
Cell = Union[Op, Sequence[Op]]


def timetable(
    placement: Sequence[Sequence[int]],
    rows: Sequence[Sequence[Cell]],
    *,
    schedule: str = "mine",
    micro_batches: int | None = None,
    units_per_micro: int = 1,
    graph: Dict[str, Any] | None = None,
) -> Timetable:
    """The timetable with these rows.

    `placement` has the worker of each stage, for each pipe. A cell is an op `(kind, pipe, stage, micro_batches)`, or a
    list of two ops that run as a pair. Kinds are `F`, `B`, `I`, `W` and `R`; `micro_batches` is one number or several.
    `graph` is `{"sources": [0], "edges": [(0, 1), …], "losses": [1]}` of stages that are no chain.
    """
    if not isinstance(units_per_micro, int) or units_per_micro < 1:
        raise Error(f"`units_per_micro` is {units_per_micro!r}: choose a number from 1")
    try:
        pipes = [[operator.index(worker) for worker in pipe] for pipe in placement]
    except TypeError:
        raise Error(f"`placement` is {placement!r}: give the worker of each stage, for each pipe, such as [[0, 1], [1, 0]]") from None
    try:
        lists = [list(row) for row in rows]
    except TypeError:
        raise Error(f"`rows` is {rows!r}: give a list of cells for each worker") from None
    cells = [[_cell(cell) for cell in row] for row in lists]
    units = [unit for row in cells for cell in row for op in cell.get("pair", [cell]) for unit in op["micro_batches"]]
    file = {
        "schedule": schedule,
        "depth": len(cells),
        "stages": len(pipes[0]) if pipes else 0,
        "pipes": len(pipes),
        "micro_batches": (max(units, default=-1) + units_per_micro) // units_per_micro
        if micro_batches is None
        else micro_batches,
        "unit": 1 / units_per_micro,
        "placement": pipes,
        "rows": cells,
    }
    if graph is not None:
        file["graph"] = graph
    return parse(json.dumps(file), format="json")


def _cell(cell: Any) -> dict[str, Any]:
    if not isinstance(cell, (tuple, list)):
        raise Error(f"{cell!r} is no cell: choose an op (kind, pipe, stage, micro_batches), or a list of two that run as a pair")
    is_op = len(cell) > 0 and isinstance(cell[0], str)
    ops = [_op(op) for op in ([cell] if is_op else cell)]
    return ops[0] if len(ops) == 1 else {"pair": ops}


def _op(op: Any) -> dict[str, Any]:
    try:
        kind, pipe, stage, micro_batches = op
        # Numbers of NumPy are numbers too.
        ids = [*map(operator.index, micro_batches if hasattr(micro_batches, "__iter__") else [micro_batches])]
        return {"kind": str(kind), "pipe": operator.index(pipe), "stage": operator.index(stage), "micro_batches": ids}
    except (TypeError, ValueError):
        raise Error(f"{op!r} is no op: choose (kind, pipe, stage, micro_batches)") from None
