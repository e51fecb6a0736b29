"""nanotron's two engines, whose order is in their loops."""

from __future__ import annotations

from .._order import Act, Entry, Order


def nanotron(depth: int, micro_batches: int, *, engine: str = "1f1b") -> Order:
    """The order of nanotron's `OneForwardOneBackwardPipelineEngine`, or of `AllForwardAllBackward` with `engine="afab"`.

    Their messages are asynchronous, and are made by us.
    """
    rows = [_row(rank, depth, micro_batches, engine == "afab") for rank in range(depth)]
    return Order(f"nanotron {engine}", [list(range(depth))], micro_batches, rows)


def _row(rank: int, depth: int, micro_batches: int, all_forward: bool) -> list[Entry]:
    n_ahead = micro_batches if all_forward else min(depth - rank - 1, micro_batches)
    row: list[Entry] = [Act("F", rank, micro_batch) for micro_batch in range(n_ahead)]
    for backward, forward in enumerate(range(n_ahead, micro_batches)):
        row += [Act("F", rank, forward), Act("B", rank, backward)]
    return row + [Act("B", rank, backward) for backward in range(micro_batches - n_ahead, micro_batches)]
