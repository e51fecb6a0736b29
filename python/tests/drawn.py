"""Orders that are sound by the way in which they are drawn, and mutations that never are."""

import random
from collections import Counter

from chimera_pipeline.conform import Act, Order


def placement(draw, depth):
    """The rank of each stage, for each pipe."""
    kind = draw.choice(["line", "loop", "v", "two ways", "two waves"])
    line = list(range(depth))
    if kind == "loop":
        return [line * draw.choice([2, 3])]
    if kind == "v":
        return [line + line[::-1]]
    if kind == "two waves":
        return [(line + line[::-1]) * 2]
    return [line, line[::-1]] if kind == "two ways" else [line]


def order(seed):
    """One sequence of all acts, in which each message is received when it is sent: ranks that follow it can never wait for ever."""
    draw = random.Random(seed)
    depth, n = draw.randrange(1, 7), draw.randrange(1, 9)
    pipes = placement(draw, depth)
    n_stages, is_split = len(pipes[0]), draw.random() < 0.5
    most = draw.choice([2, 4, 100])
    # Without messages of its own an order is one of our programs, in which micro-batches keep their order between two ranks.
    has_messages = draw.random() < 0.7
    rows, alive = [[] for _ in range(depth)], Counter()
    ready = [Act("F", 0, m, draw.randrange(len(pipes))) for m in range(n)]
    while ready:
        # Forwards wait where many activations are alive, if there is anything else.
        others = [act for act in ready if act.kind != "F" or alive[pipes[act.pipe][act.stage]] < most]
        act = draw.choice(others or ready)
        if not has_messages:
            act = next(first for first in ready if first[:2] == act[:2] and first.pipe == act.pipe)
        ready.remove(act)
        rank = pipes[act.pipe][act.stage]
        rows[rank].append(act)
        alive[rank] += {"F": 1, "B": -1, "W": -1}.get(act.kind, 0)
        back = "I" if is_split else "B"
        if act.kind == "F":
            step, following = (1, "F") if act.stage + 1 < n_stages else (0, back)
        elif act.kind == "W":
            continue
        else:
            step, following = -1, back
            if is_split:
                ready.append(act._replace(kind="W"))
            if act.stage == 0:
                continue
        other = act.stage + step
        peer = pipes[act.pipe][other]
        if peer != rank:
            direction = "F" if step == 1 else "B"
            rows[rank].append(act._replace(kind=f"SEND_{direction}"))
            rows[peer].append(Act(f"RECV_{direction}", other, act.micro_batch, act.pipe))
        ready.append(Act(following, other, act.micro_batch, act.pipe))
    if not has_messages:
        rows = [[act for act in row if act.kind in "FBIW"] for row in rows]
    return Order(f"drawn {seed}", pipes, n, rows, has_messages and draw.random() < 0.5)


def mutated(sound, seed):
    """The order with one act lost, one doubled, or two messages of one rank received in the other order."""
    draw = random.Random(seed)
    rows = [list(row) for row in sound.rows]
    rank = draw.choice([rank for rank, row in enumerate(rows) if row])
    row, at = rows[rank], draw.randrange(len(rows[rank]))
    kind = draw.choice(["lost", "doubled", "crossing"])
    if kind == "crossing":
        pairs = [
            (i, j)
            for i, one in enumerate(row)
            for j, other in enumerate(row)
            if i < j and one.kind.startswith("RECV") and other.kind == one.kind and (one.stage, one.pipe) == (other.stage, other.pipe)
        ]
        if pairs:
            i, j = draw.choice(pairs)
            row[i], row[j] = row[j], row[i]
            return kind, sound._replace(rows=rows)
    if kind == "doubled":
        row.insert(at, row[at])
        return kind, sound._replace(rows=rows)
    del row[at]
    return "lost", sound._replace(rows=rows)
