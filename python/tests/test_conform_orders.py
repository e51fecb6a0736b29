"""Sound orders of other frameworks raise no alarm; each mutation of them is found, with its rank and entry."""

import random

import pytest
from chimera_pipeline import Error, conform
from chimera_pipeline.conform import Act, Order, Unsound, check_order, orders


def sound():
    for depth in (2, 3, 4, 8):
        for n in (1, 2, 5, 8, 16):
            yield orders.deepspeed(depth, n)
            yield orders.megatron(depth, n)
            yield orders.nanotron(depth, n)
            yield orders.nanotron(depth, n, engine="afab")
        for chunks in (2, 3):
            yield orders.megatron(depth, 2 * depth, chunks=chunks)
    for depth in (2, 4, 6, 8):
        yield orders.dualpipe(depth, 2 * depth)
        yield orders.dualpipe(depth, 2 * depth + 2)


def test_sound_orders_raise_no_alarm():
    assert sum(1 for order in sound() if check_order(order)) == 96


def changed(order, rank, row):
    return order._replace(rows=[row if index == rank else list(its) for index, its in enumerate(order.rows)])


def refusal(order, **claims):
    with pytest.raises(Unsound) as caught:
        check_order(order, **claims)
    return caught.value


@pytest.mark.parametrize("order", [orders.deepspeed(4, 6), orders.megatron(4, 6), orders.nanotron(4, 6), orders.dualpipe(4, 8)], ids=lambda o: o.name)
def test_random_losses_and_doubles_are_found(order):
    draw = random.Random(7)
    for _ in range(50):
        rank = draw.randrange(len(order.rows))
        row = list(order.rows[rank])
        at = draw.randrange(len(row))
        lost = changed(order, rank, row[:at] + row[at + 1 :])
        doubled = changed(order, rank, row[: at + 1] + row[at:])
        for made in (lost, doubled):
            refusal(made)


def test_a_lost_micro_batch_is_named():
    order = orders.nanotron(2, 4)
    rows = [[act for act in row if act.micro_batch != 3] for row in order.rows]
    found = refusal(order._replace(rows=rows))
    assert found.rank is not None and "micro-batch 3 never has its" in found.reason
    row = order.rows[1]
    found = refusal(changed(order, 1, [act for act in row if act != Act("B", 1, 2)]))
    assert (found.rank, found.entry) == (1, 7) and "micro-batch 2 never has its backward on stage 1" in str(found)


def test_a_doubled_weight_half_is_named():
    order = orders.dualpipe(4, 8)
    row = list(order.rows[2])
    at = next(index for index, entry in enumerate(row) if isinstance(entry, Act) and entry.kind == "W")
    found = refusal(changed(order, 2, row + [row[at]]))
    assert (found.rank, found.entry) == (2, len(row)) and "repeats what was done already" in found.reason


def two(second, first=None, is_blocking=False):
    """Two ranks and two micro-batches with messages of their own, in words such as `RECV_F 1`."""
    first = first or "F 0, SEND_F 0, F 1, SEND_F 1, RECV_B 0, B 0, RECV_B 1, B 1"
    rows = [[Act(word.split()[0], stage, int(word.split()[1])) for word in text.split(",")] for stage, text in enumerate((first, second))]
    return Order("mine", [[0, 1]], 2, rows, is_blocking)


def test_messages_are_followed():
    right = two("RECV_F 0, RECV_F 1, F 0, B 0, SEND_B 0, F 1, B 1, SEND_B 1")
    assert check_order(right).peaks == [2.0, 1.0]
    found = refusal(two("RECV_F 1, RECV_F 0, F 0, B 0, SEND_B 0, F 1, B 1, SEND_B 1"))
    assert (found.rank, found.entry) == (1, 0)
    assert "receives cross: RECV_F of micro-batch 1 on stage 1 gets the message of SEND_F of micro-batch 0 on stage 0" in found.reason
    found = refusal(two("F 0, RECV_F 0, RECV_F 1, B 0, SEND_B 0, F 1, B 1, SEND_B 1"))
    assert (found.rank, found.entry) == (1, 0) and "whose input is not received before it" in found.reason
    found = refusal(two("RECV_F 0, RECV_F 1, F 0, SEND_B 0, B 0, F 1, B 1, SEND_B 1"))
    assert (found.rank, found.entry) == (1, 3) and "which is not computed before it" in found.reason
    found = refusal(two("RECV_F 0, RECV_F 1, F 0, B 0, SEND_B 0, F 1, B 1"))
    assert (found.rank, found.entry) == (0, 6)
    assert "rank 0 at entry 6 for rank 1 (RECV_B of micro-batch 1 on stage 0)" in found.reason
    found = refusal(two("RECV_F 0, RECV_F 1, F 0, B 0, SEND_B 0, F 1, B 1, SEND_B 1, SEND_B 1"))
    assert (found.rank, found.entry) == (1, 8) and "is received by nobody" in found.reason


def test_a_deadlock_names_who_waits_for_whom():
    """Megatron's sends and receives of the steady phase, if they were posted one after the other."""
    order = orders.megatron(2, 4)
    apart = [[act for entry in row for act in ([entry] if isinstance(entry, Act) else entry)] for row in order.rows]
    found = refusal(order._replace(rows=apart))
    assert "ranks wait for each other" in found.reason
    assert "rank 0 at entry 3 for rank 1 (SEND_F of micro-batch 1 on stage 0)" in found.reason
    assert "rank 1 at entry 3 for rank 0 (SEND_B of micro-batch 0 on stage 1)" in found.reason
    check_order(order._replace(rows=apart, is_blocking=False))


def test_claims_of_memory_are_checked():
    order = orders.nanotron(4, 8)
    assert check_order(order, claims=[4, 3, 2, 1]).peaks == [4.0, 3.0, 2.0, 1.0]
    check_order(order, claims={0: 4})
    found = refusal(order, claims=[4, 3, 1, 1])
    assert found.rank == 2 and "keeps activations of 2 micro-batches at its peak, and 1 are claimed" in found.reason
    with pytest.raises(Error, match="`claims` has rank 7"):
        check_order(order, claims={7: 1})


class RecvActivation:
    def __init__(self, buffer_id):
        self.buffer_id = buffer_id


Forward, Backward = (type(name, (RecvActivation,), {}) for name in ("ForwardPass", "BackwardPass"))
Load, SendActivation, SendGrad, RecvGrad = (type(name, (RecvActivation,), {}) for name in ("LoadMicroBatch", "SendActivation", "SendGrad", "RecvGrad"))


def instructions(n_buffers):
    """DeepSpeed's instructions of two ranks and two micro-batches; the first has this many buffers."""
    last = 1 % n_buffers
    first = [[Load(0), Forward(0)], [SendActivation(0)], [Load(last), Forward(last)], [SendActivation(last), RecvGrad(0), Backward(0)], [RecvGrad(last), Backward(last)]]
    second = [[RecvActivation(0), Forward(0)], [Backward(0)], [RecvActivation(1), SendGrad(0), Forward(1)], [Backward(1)], [SendGrad(1)]]
    return [first, second]


def test_instructions_of_deepspeed_are_read_by_their_buffers():
    check_order(orders.deepspeed(2, 2, schedules=instructions(2)))
    # One buffer for two micro-batches in flight: the first is overwritten before its backward.
    found = refusal(orders.deepspeed(2, 2, schedules=instructions(1)))
    assert found.rank == 0
    with pytest.raises(Error, match="ForwardPass of buffer 3, which nothing has filled"):
        orders.deepspeed(1, 1, schedules=[[[Forward(3)]]])


def test_rows_of_pytorchs_actions_are_read():
    rows = ["0F0,0F1,0B0,,0B1".split(","), ["", "1F0", "1I0", "1W0", "1F1", "1UNSHARD", "1B1"]]
    assert check_order(orders.from_actions(rows, [0, 1], 2)).peaks == [2.0, 1.0]
    csv = "\n".join(["0F0,0F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,0B0,0B1", "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1"])
    check_order(orders.torchtitan_csv(csv, 2, 2, style="v"))
    assert "belongs to worker" in refusal(orders.torchtitan_csv(csv, 2, 2)).reason
    for text, why in (("0X1", "is no action"), ("0F", "has no micro-batch")):
        with pytest.raises(Error, match=why):
            orders.from_actions([[text]], [0], 1)
    with pytest.raises(Error, match='choose "loop" or "v"'):
        orders.torchtitan_csv(csv, 2, 2, style="w")


def test_orders_that_cannot_be_are_refused():
    with pytest.raises(Error, match="DualPipe has an even depth"):
        orders.dualpipe(3, 8)
    with pytest.raises(Error, match="Megatron's order of rank 1 has 5"):
        orders.megatron(2, 2, chunks=2, orders=[[1, 1, 2, 2, -2, -2, -1, -1], [1, 5]])
    with pytest.raises(Unsound, match="mine is not sound"):
        check_order(Order("mine", [[0, 1]], 1, [[Act("F", 0, 0)]]))
