"""Orders of PyTorch's own classes raise no alarm, with their messages; mutations of them do."""

import pytest
from chimera_pipeline.conform import Unsound, check_order, orders

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

CLASSES = {
    "GPipe": 1,
    "LoopedBFS": 2,
    "Interleaved1F1B": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("name", CLASSES)
def test_pytorchs_classes_are_sound(name, depth):
    for n in (2 * depth, 4 * depth):
        order = orders.pytorch_class(name, depth, n)
        assert order.has_messages == (CLASSES[name] > 1)
        check_order(order)


def test_a_lost_message_of_pytorch_is_found():
    order = orders.pytorch_class("ZBVZeroBubble", 2, 4)
    row = list(order.rows[0])
    at = next(index for index, entry in enumerate(row) if entry.kind == "RECV_B")
    with pytest.raises(Unsound, match="rank 0"):
        check_order(order._replace(rows=[row[:at] + row[at + 1 :], order.rows[1]]))


def test_the_order_that_1f1b_tells_is_checked():
    """That of torch 2.15 begins with micro-batch 1 on the last rank; what runs is another loop."""
    order = orders.pytorch_class("1F1B", 2, 4)
    if order.rows[1][0].micro_batch == 0:
        check_order(order)
    else:
        with pytest.raises(Unsound, match="rank 1, entry 6: there is no F of micro-batch 4 on stage 1"):
            check_order(order)
