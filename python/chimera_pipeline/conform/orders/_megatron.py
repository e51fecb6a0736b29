"""Megatron's schedules: 1F1B with its messages, and the interleaved order from its table."""

from __future__ import annotations

from typing import Sequence

from ... import Error
from .._order import Act, Entry, Order


def megatron(
    depth: int, micro_batches: int, *, chunks: int = 1, group: int | None = None, orders: Sequence[Sequence[int]] | None = None
) -> Order:
    """The order of Megatron-LM.

    With one chunk it is 1F1B, whose sends and receives of the steady phase are posted together. With several, `orders` are the
    lists of `convert_schedule_table_to_order` for each rank [default: its rule]: `k` is the next forward of chunk `k - 1`, and `-k`
    its next backward. `group` is `microbatch_group_size_per_vp_stage` [default: the depth].
    """
    if chunks == 1:
        rows = [_one_chunk(rank, depth, micro_batches) for rank in range(depth)]
        return Order("Megatron 1F1B", [list(range(depth))], micro_batches, rows, is_blocking=True)
    size = depth if group is None else group
    if orders is None:
        orders = [_interleaved(rank, depth, micro_batches, chunks, size) for rank in range(depth)]
    placement = [stage % depth for stage in range(depth * chunks)]
    rows = [_numbered(order, rank, depth, micro_batches, chunks, size) for rank, order in enumerate(orders)]
    return Order("Megatron interleaved", [placement], micro_batches, rows)


def _one_chunk(rank: int, depth: int, micro_batches: int) -> list[Entry]:
    row: list[Entry] = []
    n_warmup, is_first, is_last = min(depth - rank - 1, micro_batches), rank == 0, rank + 1 == depth

    def together(*acts: Act) -> None:
        """Messages between this rank and a neighbour, if there is one."""
        there = [act for act in acts if not (is_first and act.kind in ("RECV_F", "SEND_B")) and not (is_last and act.kind in ("SEND_F", "RECV_B"))]
        if there:
            row.append(there[0] if len(there) == 1 else tuple(there))

    for forward in range(n_warmup):
        together(Act("RECV_F", rank, forward))
        row.append(Act("F", rank, forward))
        together(Act("SEND_F", rank, forward))
    if n_warmup < micro_batches:
        together(Act("RECV_F", rank, n_warmup))
    for backward, forward in enumerate(range(n_warmup, micro_batches)):
        row.append(Act("F", rank, forward))
        together(Act("SEND_F", rank, forward), Act("RECV_B", rank, backward))
        row.append(Act("B", rank, backward))
        if forward + 1 < micro_batches:
            together(Act("SEND_B", rank, backward), Act("RECV_F", rank, forward + 1))
        else:
            together(Act("SEND_B", rank, backward))
    for backward in range(micro_batches - n_warmup, micro_batches):
        together(Act("RECV_B", rank, backward))
        row.append(Act("B", rank, backward))
        together(Act("SEND_B", rank, backward))
    return row


def _table(micro_batches: int, chunks: int, group: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) of each forward: groups of micro-batches go through all chunks, one group after the other."""
    starts = range(0, micro_batches, group)
    return [(m, chunk) for start in starts for chunk in range(chunks) for m in range(start, min(start + group, micro_batches))]


def _interleaved(rank: int, depth: int, micro_batches: int, chunks: int, group: int) -> list[int]:
    table = _table(micro_batches, chunks, group)
    n_warmup = min(2 * (depth - rank - 1) + (chunks - 1) * group, len(table))
    forwards, backwards = [chunk + 1 for _, chunk in table], [chunk - chunks for _, chunk in table]
    order = forwards[:n_warmup]
    for forward, backward in zip(forwards[n_warmup:], backwards):
        order += [forward, backward]
    return order + backwards[len(table) - n_warmup :]


def _numbered(order: Sequence[int], rank: int, depth: int, micro_batches: int, chunks: int, group: int) -> list[Entry]:
    """The acts of an order, whose micro-batches of a chunk are those of the table."""
    of_chunk = {chunk: [m for m, its in _table(micro_batches, chunks, group) if its == chunk] for chunk in range(chunks)}
    seen: dict[int, int] = {}
    row: list[Entry] = []
    for number in order:
        chunk, count = abs(number) - 1, seen.get(number, 0)
        if number == 0 or chunk >= chunks or count >= len(of_chunk[chunk]):
            raise Error(f"Megatron's order of rank {rank} has {number}, beside {chunks} chunks of {micro_batches} micro-batches: give orders of these")
        seen[number] = count + 1
        row.append(Act("F" if number > 0 else "B", chunk * depth + rank, of_chunk[chunk][count]))
    return row
