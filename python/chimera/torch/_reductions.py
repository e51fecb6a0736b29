"""Sums of gradients over the replicas of a bucket, in one order of additions, so that replicas stay equal to the bit."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist


class Bucket:
    """The parameters whose gradients are summed together, and the ranks that hold them."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], ranks: Sequence[int], group: Any) -> None:
        self.parameters, self.ranks, self._group = list(parameters), list(ranks), group
        by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
        for parameter in self.parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        self._alike = list(by_dtype.values())
        self._works: list[tuple[Any, list[torch.Tensor], list[torch.nn.Parameter]]] = []

    @property
    def is_shared(self) -> bool:
        return len(self.ranks) > 1

    def begin(self) -> None:
        """Drops the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    def start(self) -> None:
        """Starts the sum. A parameter without a gradient counts as zeros."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if not self.is_shared:
            return
        for alike in self._alike:
            own = torch.cat([parameter.grad.reshape(-1) for parameter in alike])
            all_of_them = [torch.empty_like(own) for _ in self.ranks]
            work = dist.all_gather(all_of_them, own, group=self._group, async_op=True)
            self._works.append((work, all_of_them, alike))

    def wait(self) -> None:
        """Waits for the sum, and puts it where the gradients were."""
        for work, gathered, alike in self._works:
            work.wait()
            total = gathered[0]
            for other in gathered[1:]:
                total += other
            parts = total.split([parameter.numel() for parameter in alike])
            for parameter, part in zip(alike, parts):
                parameter.grad = part.view_as(parameter)
        self._works.clear()

    def make_equal(self, buffers: Sequence[torch.Tensor]) -> None:
        """Gives all replicas the weights and buffers of the first."""
        if self.is_shared:
            for tensor in [*self.parameters, *buffers]:
                dist.broadcast(tensor.data, self.ranks[0], group=self._group)

    def squared_norm(self) -> torch.Tensor:
        grads = [parameter.grad for parameter in self.parameters]
        total = torch.zeros((), dtype=torch.float64, device=grads[0].device if grads else None)
        for grad in grads:
            total += grad.double().square().sum()
        return total

    def scale(self, factor: float) -> None:
        for parameter in self.parameters:
            parameter.grad.mul_(factor)
