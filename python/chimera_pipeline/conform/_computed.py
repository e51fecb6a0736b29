"""What ranks compute, where an order takes messages of one channel out of turn, which our own programs never do."""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from ._order import COMPUTE, Act, Order, Unsound, acts

Key = Tuple[int, int, int]
"""Pipe, stage and micro-batch."""


def check_computed(order: Order) -> List[float]:
    """Raises `Unsound` unless each micro-batch is computed once on each stage, after what it needs on its own rank.

    Returns the peaks of saved activations by rank, in micro-batches, each stage of a rank counting for its part.
    """
    done: Dict[str, Set[Key]] = {kind: set() for kind in COMPUTE}
    peaks = [_check_rank(order, rank, done) for rank in range(len(order.rows))]
    pipes = {act.micro_batch: act.pipe for row in order.rows for entry in row for act in acts(entry) if act.kind == "F"}
    for micro_batch in range(order.micro_batches):
        for stage in range(len(order.placement[0])):
            key = (pipes.get(micro_batch, 0), stage, micro_batch)
            has_backward = key in done["B"] or (key in done["I"] and key in done["W"])
            if key not in done["F"] or not has_backward:
                missing = "forward" if key not in done["F"] else "backward"
                raise Unsound(order.name, None, None, f"micro-batch {micro_batch} never has its {missing} on stage {stage}")
    return peaks


def _check_rank(order: Order, rank: int, done: Dict[str, Set[Key]]) -> float:
    alive, peak = 0, 0
    held = sum(worker == rank for worker in order.placement[0])
    for index, entry in enumerate(order.rows[rank]):
        for act in acts(entry):
            if act.kind not in COMPUTE:
                continue
            reason = _wrong(order, rank, act, done)
            if reason:
                raise Unsound(order.name, rank, index, f"{act} {reason}")
            done[act.kind].add(_key(act))
            alive += {"F": 1, "B": -1, "W": -1}.get(act.kind, 0)
            peak = max(peak, alive)
    return peak / max(held, 1)


def _key(act: Act) -> Key:
    return act.pipe, act.stage, act.micro_batch


def _wrong(order: Order, rank: int, act: Act, done: Dict[str, Set[Key]]) -> str:
    """What is wrong with an act at its place; nothing if it is right."""
    placement, key = order.placement[act.pipe], _key(act)
    if placement[act.stage] != rank:
        return f"belongs to worker {placement[act.stage]}"
    alike = ("B", "I") if act.kind in ("B", "I") else ("B", "W") if act.kind == "W" else ("F",)
    if any(key in done[kind] for kind in alike):
        return "repeats what was done already"
    if act.kind == "W":
        return "" if key in done["I"] else "comes before its input half"
    step = -1 if act.kind == "F" else 1
    before = (act.pipe, act.stage + step, act.micro_batch)
    if 0 <= before[1] < len(placement) and placement[before[1]] == rank:
        kinds = ("F",) if act.kind == "F" else ("B", "I")
        if not any(before in done[kind] for kind in kinds):
            return "comes before what it takes is computed"
    return "" if act.kind == "F" or key in done["F"] else "comes before its forward"
