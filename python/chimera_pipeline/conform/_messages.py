"""Messages that an order writes itself: each is received where it is expected, and no rank waits for ever."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Set, Tuple

from ._order import COMPUTE, RECEIVES, SENDS, Act, Order, Unsound, acts


class _Posted(NamedTuple):
    """A message at one of its ends."""

    rank: int
    entry: int
    act: Act


def check_messages(order: Order) -> None:
    """Raises `Unsound` unless all messages arrive, in the order in which they are received.

    Messages from one rank to another have no tags: the first receive gets the first message. So it is over NCCL, and over gloo
    where all have one tag.
    """
    _Wire(order).run()


class _Wire:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._next = [0] * len(order.rows)
        self._posted_now = [False] * len(order.rows)
        self._sent: Dict[Tuple[int, int], List[_Posted]] = {}
        self._received: Dict[Tuple[int, int], List[_Posted]] = {}
        self._waits: List[List[Tuple[Dict[Tuple[int, int], List[_Posted]], Tuple[int, int], int]]] = [[] for _ in order.rows]
        self._values: List[Set[Tuple[str, int, int, int]]] = [set() for _ in order.rows]

    def run(self) -> None:
        moved = True
        while moved:
            moved = any([self._advance(rank) for rank in range(len(self._next))])
        stuck = [rank for rank, at in enumerate(self._next) if at < len(self._order.rows[rank])]
        if stuck:
            raise self._unsound(stuck[0], self._next[stuck[0]], "ranks wait for each other: " + "; ".join(map(self._waiting, stuck)))
        for channel, sent in self._sent.items():
            left = sent[len(self._received.get(channel, [])) :]
            if left:
                raise self._unsound(left[0].rank, left[0].entry, f"{left[0].act} is received by nobody: rank {channel[1]} has no receive left")

    def _advance(self, rank: int) -> bool:
        """Carries out entries of a rank as long as it need not wait."""
        row, start = self._order.rows[rank], (self._next[rank], self._posted_now[rank])
        while self._next[rank] < len(row):
            if not self._posted_now[rank]:
                self._begin(rank, self._next[rank])
            if any(len(ends.get(channel, [])) <= index for ends, channel, index in self._waits[rank]):
                break
            self._next[rank] += 1
            self._posted_now[rank] = False
        return (self._next[rank], self._posted_now[rank]) != start

    def _begin(self, rank: int, at: int) -> None:
        """Posts the messages of an entry, and checks that what it computes or sends is there."""
        self._posted_now[rank], self._waits[rank] = True, []
        for act in acts(self._order.rows[rank][at]):
            if act.kind in COMPUTE:
                self._compute(rank, at, act)
            elif act.kind in SENDS:
                self._need(rank, at, act, ("made " + act.kind[-1], act.pipe, act.stage, act.micro_batch), "which is not computed before it")
                self._post(rank, at, act, (rank, self._order.peer(act)), self._sent, self._received, self._order.is_blocking)
            elif act.kind in RECEIVES:
                self._post(rank, at, act, (self._order.peer(act), rank), self._received, self._sent, True)
                self._values[rank].add(("got " + act.kind[-1], act.pipe, act.stage, act.micro_batch))

    def _post(
        self,
        rank: int,
        at: int,
        act: Act,
        channel: Tuple[int, int],
        own: Dict[Tuple[int, int], List[_Posted]],
        other: Dict[Tuple[int, int], List[_Posted]],
        waits: bool,
    ) -> None:
        ends, index = own.setdefault(channel, []), len(own.get(channel, []))
        ends.append(_Posted(rank, at, act))
        if waits:
            self._waits[rank].append((other, channel, index))
        there = other.get(channel, [])
        if index < len(there):
            sent, received = (there[index], ends[index]) if act.kind in RECEIVES else (ends[index], there[index])
            self._match(sent, received)

    def _match(self, sent: _Posted, received: _Posted) -> None:
        expected = Act("SEND_" + received.act.kind[-1], received.act.stage + RECEIVES[received.act.kind], *received.act[2:])
        if sent.act != expected:
            raise self._unsound(
                received.rank,
                received.entry,
                f"receives cross: {received.act} gets the message of {sent.act}, which is the next from rank {sent.rank} (its entry {sent.entry})",
            )

    def _compute(self, rank: int, at: int, act: Act) -> None:
        placement, last = self._order.placement[act.pipe], len(self._order.placement[act.pipe]) - 1
        made = {"F": "made F", "B": "made B", "I": "made B"}.get(act.kind)
        if act.kind == "F" and act.stage > 0 and placement[act.stage - 1] != rank:
            self._need(rank, at, act, ("got F", act.pipe, act.stage, act.micro_batch), "whose input is not received before it")
        if act.kind in ("B", "I") and act.stage < last and placement[act.stage + 1] != rank:
            self._need(rank, at, act, ("got B", act.pipe, act.stage, act.micro_batch), "whose gradient is not received before it")
        if made:
            self._values[rank].add((made, act.pipe, act.stage, act.micro_batch))

    def _need(self, rank: int, at: int, act: Act, value: Tuple[str, int, int, int], why: str) -> None:
        if value not in self._values[rank]:
            raise self._unsound(rank, at, f"{act}, {why}")

    def _waiting(self, rank: int) -> str:
        """The message that a rank waits for."""
        at = self._next[rank]
        for act in acts(self._order.rows[rank][at]):
            if act.kind in COMPUTE:
                continue
            channel = (rank, self._order.peer(act)) if act.kind in SENDS else (self._order.peer(act), rank)
            ends, others = (self._sent, self._received) if act.kind in SENDS else (self._received, self._sent)
            index = next(index for index, end in enumerate(ends[channel]) if (end.entry, end.act) == (at, act))
            if len(others.get(channel, [])) <= index:
                return f"rank {rank} at entry {at} for rank {self._order.peer(act)} ({act})"
        return f"rank {rank} at entry {at}"

    def _unsound(self, rank: int, entry: int, reason: str) -> Unsound:
        return Unsound(self._order.name, rank, entry, reason)
