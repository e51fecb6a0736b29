"""DualPipe's rule: two pipes in opposite directions, in eight phases."""

from __future__ import annotations

from typing import Iterator

from ... import Error
from .._order import Act, Entry, Order


def dualpipe(depth: int, micro_batches: int) -> Order:
    """The order of DeepSeek's DualPipe: half of the micro-batches enter at each end. It writes no messages here."""
    if depth % 2 or micro_batches % 2 or micro_batches < 2 * depth:
        raise Error(f"DualPipe has an even depth and an even number of micro-batches from twice the depth: {depth} and {micro_batches} are not such")
    rows = [list(_Rank(rank, depth, micro_batches).row()) for rank in range(depth)]
    return Order("DualPipe", [list(range(depth)), list(reversed(range(depth)))], micro_batches, rows)


class _Rank:
    """Counters of one rank: the next forward, backward and weight half of each direction."""

    def __init__(self, rank: int, depth: int, micro_batches: int) -> None:
        self._half, self._rank = depth // 2, min(rank, depth - 1 - rank)
        # A direction is seen from the nearer end: 0 goes towards the middle, 1 comes from it.
        self._pipes = (0, 1) if rank < self._half else (1, 0)
        self._stages = (rank, depth - 1 - rank)
        self._n = micro_batches // 2
        self._next: dict[tuple[str, int], int] = {}
        self._deferred: list[Act] = []

    def _act(self, kind: str, direction: int) -> Act:
        counted = "F" if kind == "F" else "B"
        pipe, index = self._pipes[direction], self._next.get((counted, direction), 0)
        self._next[counted, direction] = index + 1
        return Act(kind, self._stages[pipe], pipe * self._n + index, pipe)

    def _input_half(self, direction: int) -> Act:
        act = self._act("I", direction)
        self._deferred.append(act._replace(kind="W"))
        return act

    def row(self) -> Iterator[Entry]:
        half, rank, n = self._half, self._rank, self._n
        for _ in range(2 * (half - rank - 1)):
            yield self._act("F", 0)
        for _ in range(rank + 1):
            yield self._act("F", 0)
            yield self._act("F", 1)
        for _ in range(half - rank - 1):
            yield self._input_half(1)
            yield self._deferred.pop(0)
            yield self._act("F", 1)
        for turn in range(n - 2 * half + rank + 1):
            pair = self._act("F", 0), self._act("B", 1)
            # The middle ranks begin with two single ones.
            if turn == 0 and rank == half - 1:
                yield from pair
            else:
                yield pair
            yield self._act("F", 1), self._act("B", 0)
        for _ in range(half - rank - 1):
            yield self._act("B", 1)
            yield self._act("F", 1), self._act("B", 0)
        yield from self._last(half, rank)

    def _last(self, half: int, rank: int) -> Iterator[Entry]:
        """Phases without forwards: from the middle of the sixth on, weight halves wait."""
        n_pairs, defers = rank + 1, False
        for turn in range(n_pairs):
            if turn == n_pairs // 2 and rank % 2 == 1:
                defers = True
            yield self._input_half(1) if defers else self._act("B", 1)
            if turn == n_pairs // 2 and rank % 2 == 0:
                defers = True
            yield self._input_half(0) if defers else self._act("B", 0)
        for _ in range(half - rank - 1):
            yield self._deferred.pop(0)
            yield self._input_half(0)
        yield from self._deferred
