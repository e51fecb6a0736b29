"""Is your pipeline a pipeline? Proofs of foreign orders, and trials of foreign runtimes beside the model run whole.

>>> from chimera_pipeline import conform
>>> conform.check_order(conform.orders.nanotron(4, 8)).peaks
[4.0, 3.0, 2.0, 1.0]
"""

from typing import TYPE_CHECKING, Any

from . import orders
from ._order import Act, Order, Unsound
from ._proof import Proof, check_order

if TYPE_CHECKING:
    from ._check import NotThePipeline, Report, check_pipeline
    from ._diagnosis import Finding
    from ._trial import Trial, named

__all__ = [
    "Act",
    "Finding",
    "NotThePipeline",
    "Order",
    "Proof",
    "Report",
    "Trial",
    "Unsound",
    "check_order",
    "check_pipeline",
    "named",
    "orders",
]

_OF_TORCH = {"Finding": "_diagnosis", "Trial": "_trial", "named": "_trial"}


def __getattr__(name: str) -> Any:
    """Trials need torch, and proofs of orders do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_OF_TORCH.get(name, '_check')}", __name__), name)
