"""DeepSpeed's 1F1B: its `TrainSchedule`, or the rule of it."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from ... import Error
from .._order import Act, Entry, Order

_KINDS = {
    "ForwardPass": "F",
    "BackwardPass": "B",
    "SendActivation": "SEND_F",
    "RecvActivation": "RECV_F",
    "SendGrad": "SEND_B",
    "RecvGrad": "RECV_B",
}


def deepspeed(depth: int, micro_batches: int, *, schedules: Sequence[Iterable[Iterable[Any]]] | None = None) -> Order:
    """The order of DeepSpeed's pipeline.

    `schedules` are its `TrainSchedule(micro_batches=…, stages=depth, stage_id=rank)`, one for each rank [default: its rule]. An
    instruction names a buffer: what is in it is found by the loads and receives before. So a buffer that is filled again before
    its backward is found as work that is lost.
    """
    if schedules is None:
        rows = [_rule(rank, depth, micro_batches) for rank in range(depth)]
    else:
        rows = [_read(steps, rank) for rank, steps in enumerate(schedules)]
    return Order("DeepSpeed", [list(range(depth))], micro_batches, rows, is_blocking=True)


def _read(steps: Iterable[Iterable[Any]], rank: int) -> list[Entry]:
    """The acts of a rank's instructions, by the names of their classes."""
    row: list[Entry] = []
    in_buffer: dict[int, int] = {}
    n_filled = 0
    for step in steps:
        for instruction in step:
            name, buffer = type(instruction).__name__, getattr(instruction, "buffer_id", None)
            is_fill = name == "RecvActivation" or (name == "LoadMicroBatch" and rank == 0)
            if is_fill and buffer is not None:
                in_buffer[buffer] = n_filled
                n_filled += 1
            if name not in _KINDS:
                continue
            if buffer not in in_buffer:
                raise Error(f"DeepSpeed's rank {rank} has {name} of buffer {buffer}, which nothing has filled: load or receive before it")
            row.append(Act(_KINDS[name], rank, in_buffer[buffer]))
    return row


def _rule(rank: int, depth: int, micro_batches: int) -> list[Entry]:
    """2 (N + D - 1) steps: a rank's forwards are in the steps of its parity, its backwards in the others.

    In a step, what the neighbour needs of the step before is sent, and what is computed now is received. Ranks of one parity
    send first and those of the other receive first.
    """
    row: list[Entry] = []
    before: tuple[str, int] | None = None
    for step in range(2 * (micro_batches + depth - 1)):
        now = _of_step(step, rank, depth, micro_batches)
        sends: list[Act] = []
        receives: list[Act] = []
        if before is not None and before[0] == "F" and rank + 1 < depth:
            sends.append(Act("SEND_F", rank, before[1]))
        if before is not None and before[0] == "B" and rank > 0:
            sends.append(Act("SEND_B", rank, before[1]))
        if now is not None and now[0] == "F" and rank > 0:
            receives.append(Act("RECV_F", rank, now[1]))
        if now is not None and now[0] == "B" and rank + 1 < depth:
            receives.append(Act("RECV_B", rank, now[1]))
        is_forward_step = step % 2 == rank % 2
        row += receives + sends if is_forward_step else sends + receives
        if now is not None:
            row.append(Act(now[0], rank, now[1]))
        before = now
    if before is not None and before[0] == "B" and rank > 0:
        row.append(Act("SEND_B", rank, before[1]))
    return row


def _of_step(step: int, rank: int, depth: int, micro_batches: int) -> tuple[str, int] | None:
    """The op of a rank in a step, if it has one."""
    is_forward = step % 2 == rank % 2
    start = rank if is_forward else 2 * depth - 1 - rank
    micro_batch, rest = divmod(step - start, 2)
    if rest or not 0 <= micro_batch < micro_batches:
        return None
    return "F" if is_forward else "B", micro_batch
