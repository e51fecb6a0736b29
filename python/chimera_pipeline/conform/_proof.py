"""The proof of an order: our own prover for what ranks compute, and the messages that the order writes."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence, Union

from .. import Error, Program, Refusal, timetable
from ._computed import check_computed
from ._messages import check_messages
from ._order import COMPUTE, RECEIVES, SENDS, Order, Unsound, acts

Claims = Union[float, Sequence[float], Mapping[int, float]]


class Proof(NamedTuple):
    """The proof of a sound order. `peaks` are saved activations in micro-batches of one stage's part, by rank.

    `program` is ours with the same order, if there is one: it takes messages of one channel in turn.
    """

    order: Order
    program: Program | None
    peaks: list[float]


def check_order(order: Order, *, claims: Claims | None = None) -> Proof:
    """Proves that an order is sound, or raises `Unsound`, which names the rank and its entry.

    Each micro-batch is computed once on each stage, no rank waits for ever, and messages are received in the order in which they
    are sent. `claims` are the peaks of saved activations that are claimed, for all ranks or for each, in micro-batches on
    `program.peaks`' scale: a forward on one of a rank's stages keeps one part of as many as it has.
    """
    _check_numbers(order)
    rows, places = _computed(order)
    try:
        made = timetable(order.placement, rows, schedule=order.name, micro_batches=order.micro_batches)
        program: Program | None = made.lower()
    except Refusal as refusal:
        if not order.has_messages or "message of its channel" not in refusal.reason:
            raise _unsound(order, refusal, places) from None
        program = None
    except Error as error:
        raise Unsound(order.name, None, None, str(error)) from None
    peaks = check_computed(order) if program is None else program.peaks
    if order.has_messages:
        check_messages(order)
    _check_claims(order, peaks, claims)
    return Proof(order, program, peaks)


def _check_numbers(order: Order) -> None:
    """Raises for an act of a pipe, stage or micro-batch that there is not."""
    for rank, row in enumerate(order.rows):
        for index, entry in enumerate(row):
            for act in acts(entry):
                pipe = order.placement[act.pipe] if 0 <= act.pipe < len(order.placement) else []
                is_there = 0 <= act.stage < len(pipe) and 0 <= act.micro_batch < order.micro_batches
                step = SENDS.get(act.kind, RECEIVES.get(act.kind, 0))
                if not (is_there and 0 <= act.stage + step < len(pipe)):
                    sizes = f"{len(order.placement)} pipes of {len(pipe)} stages and {order.micro_batches} micro-batches"
                    raise Unsound(order.name, rank, index, f"there is no {act}: the order has {sizes}")


def _computed(order: Order) -> tuple[list[list[list[tuple[str, int, int, int]]]], list[list[int]]]:
    """The cells of each rank, and the entry of each cell."""
    rows, places = [], []
    for row in order.rows:
        cells, entries = [], []
        for index, entry in enumerate(row):
            ops = [(act.kind, act.pipe, act.stage, act.micro_batch) for act in acts(entry) if act.kind in COMPUTE]
            if ops:
                cells.append(ops)
                entries.append(index)
        rows.append(cells)
        places.append(entries)
    return rows, places


def _unsound(order: Order, refusal: Refusal, places: list[list[int]]) -> Unsound:
    entry = None
    if refusal.worker is not None and refusal.cell is not None:
        entries = places[refusal.worker]
        # A cell behind the last says that something is missing at the end.
        entry = entries[refusal.cell] if refusal.cell < len(entries) else len(order.rows[refusal.worker])
    return Unsound(order.name, refusal.worker, entry, refusal.reason, refusal.row)


def _check_claims(order: Order, peaks: list[float], claims: Claims | None) -> None:
    if claims is None:
        return
    ranks = range(len(order.rows))
    of_rank = dict(enumerate(claims)) if isinstance(claims, Sequence) else claims if isinstance(claims, Mapping) else dict.fromkeys(ranks, claims)
    for rank, claimed in of_rank.items():
        if not 0 <= rank < len(order.rows):
            raise Error(f"`claims` has rank {rank}, and {order.name} ranks 0 to {len(order.rows) - 1}")
        if peaks[rank] > claimed:
            raise Unsound(
                order.name, rank, None, f"it keeps activations of {peaks[rank]:g} micro-batches at its peak, and {claimed:g} are claimed"
            )


