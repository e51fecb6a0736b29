"""PyTorch's schedules and the CSV files of torchtitan, with or without their messages."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping, Sequence, Union

from ... import Error
from .._order import COMPUTE, RECEIVES, SENDS, Act, Entry, Order

_ACTION = re.compile(r"(\d+)(WAIT_SEND_F|WAIT_SEND_B|WAIT_REDUCE_GRAD|REDUCE_GRAD|UNSHARD|RESHARD|SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)(\d*)")
_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B")

Rows = Union[Mapping[int, Sequence[Any]], Sequence[Sequence[Any]]]


def pytorch(schedule: Any, *, name: str | None = None) -> Order:
    """The order of a schedule object of `torch.distributed.pipelining`, with its messages where it is lowered.

    Schedules of one stage per rank (GPipe, 1F1B) tell what they compute; their messages are made by us.
    """
    name = name or type(schedule).__name__
    order = getattr(schedule, "pipeline_order_with_comms", None) or getattr(schedule, "pipeline_order", None)
    if not order and hasattr(schedule, "_get_pipeline_order"):
        order = schedule._get_pipeline_order()
    if not order:
        raise Error(f"{name} has no order yet: load its CSV, or give the rows to `from_actions`")
    ranks: Mapping[int, int] = schedule.stage_index_to_group_rank
    return from_actions(order, [ranks[stage] for stage in range(len(ranks))], schedule._n_microbatches, name=name)


def pytorch_class(name: str, depth: int, micro_batches: int, *, chunks: int = 2) -> Order:
    """The order of a class that `torch.distributed.pipelining.schedules.get_schedule_class` knows; it needs no process group."""
    from torch.distributed.pipelining import schedules

    made_by = schedules.get_schedule_class(name)
    is_single = issubclass(made_by, schedules.PipelineScheduleSingle)
    n_stages = depth if is_single else depth * chunks
    own = [_Stage(stage, n_stages, depth) for stage in range(0, n_stages, depth)]
    made = made_by(own[0] if is_single else own, micro_batches)
    if is_single:
        made.stage_index_to_group_rank = {stage: stage for stage in range(depth)}
    return pytorch(made, name=name)


class _Stage:
    """The fields of a stage that constructors of schedules read."""

    has_backward, submod, device, is_first, is_last = True, None, "cpu", False, False

    def __init__(self, stage: int, n_stages: int, group_size: int) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank = stage, n_stages, group_size, 0
        self.stage_index_to_group_rank: dict[int, int] = {}


def torchtitan_csv(text: str, depth: int, micro_batches: int, *, style: str = "loop", name: str = "csv") -> Order:
    """A schedule file of torchtitan. `style` is where stages are: `loop`, or `v` for ZBVZeroBubble and DualPipeV."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.strip().splitlines()]
    stages = {act.stage for row in rows for cell in row for act in _acts(cell) if act.kind in COMPUTE}
    n_stages = max(stages, default=-1) + 1
    if style not in ("loop", "v"):
        raise Error(f'`style` is {style!r}: choose "loop" or "v"')
    turns = [stage // depth for stage in range(n_stages)]
    places = [depth - 1 - stage % depth if style == "v" and turns[stage] % 2 else stage % depth for stage in range(n_stages)]
    return from_actions(rows, places, micro_batches, name=name)


def from_actions(rows: Rows, ranks: Sequence[int], micro_batches: int, *, name: str = "order") -> Order:
    """The order of rows of PyTorch's actions, or of their text such as `2F0`; `ranks` has the rank of each stage."""
    listed = [rows[rank] for rank in sorted(rows)] if isinstance(rows, Mapping) else list(rows)
    return Order(name, [list(ranks)], micro_batches, [_row(row) for row in listed])


def _row(cells: Iterable[Any]) -> list[Entry]:
    row: list[Entry] = []
    for cell in cells:
        found = _acts("" if cell is None else str(cell))
        if found:
            row.append(found[0] if len(found) == 1 else tuple(found))
    return row


def _acts(text: str) -> list[Act]:
    """The acts of a cell. Actions of FSDP and waits for sends, which change nothing of what is computed, are left out."""
    text = text.strip()
    pair = _PAIR.fullmatch(text)
    found = []
    for part in pair.group(1).split(";") if pair else [text] if text else []:
        action = _ACTION.fullmatch(part.strip())
        if action is None:
            raise Error(f"`{part}` is no action: choose such as `2F0`, `1SEND_F3` or `(0F8;7B4)OVERLAP_F_B`")
        stage, kind, micro_batch = action.groups()
        if kind in COMPUTE or kind in SENDS or kind in RECEIVES:
            if not micro_batch:
                raise Error(f"`{part}` has no micro-batch: choose such as `2F0`")
            found.append(Act(kind, int(stage), int(micro_batch)))
    return found
