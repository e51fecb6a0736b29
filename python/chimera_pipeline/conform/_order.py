"""An order of another framework: what each rank computes, sends and receives."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple, Union

from .. import Error

COMPUTE = ("F", "B", "I", "W")
SENDS = {"SEND_F": 1, "SEND_B": -1}
RECEIVES = {"RECV_F": -1, "RECV_B": 1}


class Act(NamedTuple):
    """One act of a rank, in the words of PyTorch's schedules.

    `F`, `B`, `I` and `W` compute a forward, a backward, or its input half or weight half. `SEND_F` sends the output of `stage` to
    the next one, and `RECV_F` receives its input from the one before. `SEND_B` and `RECV_B` do so with gradients.
    """

    kind: str
    stage: int
    micro_batch: int
    pipe: int = 0

    def __str__(self) -> str:
        pipe = f" of pipe {self.pipe}" if self.pipe else ""
        return f"{self.kind} of micro-batch {self.micro_batch} on stage {self.stage}{pipe}"


Entry = Union[Act, Tuple[Act, ...]]
"""An act, or several: two that compute as a pair, or messages that are posted together and waited for together."""


class Order(NamedTuple):
    """The order of all ranks.

    `placement` has the rank of each stage, for each pipe. Rows without a message leave messages to us. `is_blocking` says that
    a send waits for its receive, as a synchronous send of large tensors does.
    """

    name: str
    placement: List[List[int]]
    micro_batches: int
    rows: List[List[Entry]]
    is_blocking: bool = False

    @property
    def has_messages(self) -> bool:
        return any(act.kind in SENDS or act.kind in RECEIVES for row in self.rows for entry in row for act in acts(entry))

    def peer(self, act: Act) -> int:
        """The rank at the other end of a message."""
        step = SENDS[act.kind] if act.kind in SENDS else RECEIVES[act.kind]
        return self.placement[act.pipe][act.stage + step]


class Unsound(Error):
    """An order that would hang or compute something else; `rank` and `entry` say where, if that is known."""

    def __init__(self, name: str, rank: int | None, entry: int | None, reason: str, row: str = "") -> None:
        where = "" if rank is None else f": rank {rank}" + ("" if entry is None else f", entry {entry}")
        super().__init__(f"{name} is not sound{where}: {reason}" + (f"\n{row}" if row else ""))
        self.name, self.rank, self.entry, self.reason = name, rank, entry, reason


def acts(entry: Entry) -> Sequence[Act]:
    """The acts of an entry."""
    return (entry,) if isinstance(entry, Act) else entry
