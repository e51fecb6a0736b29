"""Replicas of the stages of one worker on other ranks: sums of gradients, equal weights and the norm of the model."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Optional

import torch
import torch.distributed as dist

from .. import Error
from . import _checks
from ._reductions import Bucket, buffers_of

Grads = List[List[Optional[torch.Tensor]]]
"""Gradients of parameters by bucket; None where a parameter has none."""


class Replicas:
    """The buckets of one worker.

    `prepare` makes them. Until then modules may be on the meta device, and get other parameters. `written` are the buckets
    of the program's file.
    """

    def __init__(
        self, written: list[dict[str, Any]], modules: Mapping[int, torch.nn.Module], device: torch.device, group: Any, *, shares_buffers: bool
    ) -> None:
        self._modules, self._device, self._group, self._shares_buffers = modules, device, group, shares_buffers
        all_ranks = dist.get_process_group_ranks(group)
        # Gathered gradients come in the order of ranks within their group.
        self._ranks_of = {bucket["stages"][0]: sorted({all_ranks[worker] for worker in bucket["members"]}) for bucket in written}
        self._groups = _checks.make_groups(self._ranks_of.values(), group)
        self.buckets: list[Bucket] = []
        """In the same order on all ranks."""

    @property
    def is_meta(self) -> bool:
        """True if some parameter has no value yet."""
        return any(parameter.is_meta for module in self._modules.values() for parameter in module.parameters())

    def prepare(self) -> None:
        """Makes the buckets, if there are none, and gives replicas the weights of the first. All ranks must call it."""
        if not self.buckets:
            held = [(stage, ranks) for stage, ranks in self._ranks_of.items() if stage in self._modules]
            self.buckets = [self._make(stage, ranks) for stage, ranks in held]

    def _make(self, stage: int, ranks: list[int]) -> Bucket:
        module = self._modules[stage]
        parameters = list(module.parameters())
        made = Bucket([p for p in parameters if p.requires_grad], ranks, self._groups.get(tuple(ranks)), buffers_of([module]))
        made.make_equal([p for p in parameters if not p.requires_grad])
        return made

    def drop_gradients(self) -> None:
        """Drops the gradients of the last step."""
        for bucket in self.buckets:
            bucket.begin()

    def set_gradients_aside(self) -> Grads:
        """Returns the gradients that are there, and leaves none: they are summed already."""
        held: Grads = [[parameter.grad for parameter in bucket.parameters] for bucket in self.buckets]
        self.drop_gradients()
        return held

    def sum_gradients(self, held: Grads) -> None:
        """Sums the gradients of a step over replicas, and adds those that were set aside."""
        for bucket in self.buckets:
            bucket.start()
        for bucket in self.buckets:
            bucket.wait()
        for bucket, grads in zip(self.buckets, held):
            for parameter, grad in zip(bucket.parameters, grads):
                if grad is not None:
                    parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)

    def share_buffers(self) -> None:
        """Gives replicas the buffers of the first, if they share them."""
        if self._shares_buffers:
            for bucket in self.buckets:
                bucket.share_buffers()

    def grad_norm(self) -> float:
        """The norm of all gradients of the model, each tensor counted once, on all ranks of the group."""
        me, own = dist.get_rank(), torch.zeros(1, dtype=torch.float64, device=self._device)
        for bucket in self.buckets:
            square = bucket.whole_squared_norm(self._device)
            if bucket.ranks[0] == me:
                own += square
        return math.sqrt(float(gathered(own, self._group).sum()))

    def clip(self, max_norm: float) -> float:
        """Scales all gradients so that their norm is at most `max_norm`, and returns the norm that they had."""
        if not max_norm > 0:
            raise Error(f"`max_norm` is {max_norm!r}: choose a number above 0")
        norm = self.grad_norm()
        factor = min(1.0, max_norm / (norm + 1e-6))
        if math.isfinite(norm) and factor < 1.0:
            for bucket in self.buckets:
                bucket.scale(factor)
        return norm


def gathered(own: torch.Tensor, group: Any) -> torch.Tensor:
    """A tensor of each rank, stacked in the order of ranks, on all of them."""
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, own, group=group)
    return torch.stack(rows)
