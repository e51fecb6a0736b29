"""No false alarm over many drawn orders, and no mutation of one that is not found."""

import os

import pytest
from chimera_pipeline.conform import Unsound, check_order

import drawn

N = int(os.environ.get("CHIMERA_ORDERS", 500))


def test_drawn_orders_raise_no_alarm():
    for seed in range(N):
        check_order(drawn.order(seed))


def test_mutations_of_drawn_orders_are_found():
    for seed in range(N):
        kind, wrong = drawn.mutated(drawn.order(seed), seed)
        try:
            check_order(wrong)
        except Unsound:
            continue
        pytest.fail(f"order {seed} with one act {kind} is said to be sound")
