"""Auxiliary losses within stages, such as the balance of experts."""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator, List

import torch

from . import _checks

_active = threading.local()


class Collected:
    """The auxiliary losses of a stage in a step, and what their gradients begin with."""

    def __init__(self) -> None:
        self.begin(1.0)

    def begin(self, scale: float) -> None:
        """Begins a step."""
        self.scale = scale
        self.values: List[torch.Tensor] = []

    @contextlib.contextmanager
    def collecting(self, *, again: bool = False) -> Iterator[List[torch.Tensor]]:
        """Around a forward of the stage, whose losses are then in the list. `again` if they were counted before."""
        losses: List[torch.Tensor] = []
        before, _active.losses = getattr(_active, "losses", None), losses
        try:
            yield losses
        finally:
            _active.losses = before
        if not again:
            self.values += [loss.detach() for loss in losses]


def add_loss(loss: torch.Tensor) -> None:
    """Adds a loss to that of the model, anywhere in a stage that `Runtime` trains; elsewhere it does nothing.

    The loss is a mean over its micro-batch: a step adds the mean over all micro-batches, whatever `normalize` says, and
    reports it in `runtime.last.auxiliary`.
    """
    losses: List[torch.Tensor] | None = getattr(_active, "losses", None)
    if losses is not None:
        losses.append(_checks.one_loss(loss))
