"""Is your pipeline a pipeline? Proofs of foreign orders, and trials of foreign runtimes beside the model run whole.

>>> from chimera_pipeline import conform
>>> conform.check_order(conform.orders.nanotron(4, 8)).peaks
[4.0, 3.0, 2.0, 1.0]
"""

from . import orders
from ._order import Act, Order, Unsound
from ._proof import Proof, check_order

__all__ = ["Act", "Order", "Proof", "Unsound", "check_order", "orders"]
