"""Sums of gradients over the replicas of a bucket, in one order of additions, so that replicas stay equal to the bit."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


class Bucket:
    """The parameters whose gradients are summed together, and the ranks that hold them.

    Of a parameter that is sharded, each rank sums its own part: the ranks must hold the same part of it.
    """

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
        if not self.is_shared:
            return
        for alike in self._alike:
            own = torch.cat([_grad(parameter).reshape(-1) for parameter in alike])
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
            parts = total.split([_grad(parameter).numel() for parameter in alike])
            for parameter, part in zip(alike, parts):
                if isinstance(parameter, DTensor):
                    _grad(parameter).copy_(part.view_as(_grad(parameter)))
                else:
                    parameter.grad = part.view_as(parameter)
        self._works.clear()

    def make_equal(self, untrained: Sequence[torch.Tensor]) -> None:
        """Gives all replicas the weights of the first, and tensors that are not trained: frozen weights and buffers."""
        if self.is_shared:
            for tensor in [*self.parameters, *untrained]:
                dist.broadcast(_local(tensor.data), self.ranks[0], group=self._group)

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        squares = (_grad(parameter).double().square().sum() for parameter in self.parameters)
        return sum(squares, torch.zeros((), dtype=torch.float64, device=device))

    def scale(self, factor: float) -> None:
        for parameter in self.parameters:
            _grad(parameter).mul_(factor)


class Updated(Bucket):
    """A bucket with its optimizer; in a window those of the first update serve all."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        ranks: Sequence[int],
        group: Any,
        optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        first: Updated | None,
    ) -> None:
        super().__init__(parameters, ranks, group)
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: Any = None
        self._square: torch.Tensor | None = None
        if first is not None:
            self.optimizer, self.scheduler = first.optimizer, first.scheduler
        elif self.parameters:
            self.optimizer = optimizer(self.parameters)
            self.scheduler = scheduler(self.optimizer) if scheduler else None

    def begin(self) -> None:
        super().begin()
        self._square = None

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """That of the gradients, or of those that the update kept."""
        return super().squared_norm(device) if self._square is None else self._square

    def update(self, keeps_norm: bool) -> None:
        """Updates the weights; `keeps_norm` where it is asked for later, when the next update may have other gradients there."""
        if keeps_norm and self.parameters:
            self._square = super().squared_norm(self.parameters[0].device)
        if self.optimizer is not None:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()


def _grad(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return _local(parameter.grad)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or of a sharded one the part that is here."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
