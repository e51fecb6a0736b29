"""Sums of gradients over the replicas of a bucket, in one order of additions, so that replicas stay equal to the bit."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .. import Error

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]


class Bucket:
    """The parameters whose gradients are summed together, and the ranks that hold them.

    A rank sums its own part of a sharded parameter: all ranks of the bucket must hold the same part. `buffers` returns the
    buffers of the modules, which may be other tensors after a step.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        ranks: Sequence[int],
        group: Any,
        buffers: Callable[[], Sequence[torch.Tensor]] = list,
    ) -> None:
        self.parameters, self.ranks, self._group, self._buffers = list(parameters), list(ranks), group, buffers
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
        """Starts the sum. A parameter has no gradient afterwards if it has none on any rank."""
        if not self.is_shared:
            return
        for alike in self._alike:
            grads = [_grad(parameter) for parameter in alike]
            flat = [torch.zeros_like(_local(p)).reshape(-1) if g is None else g.reshape(-1) for p, g in zip(alike, grads)]
            has_grad = flat[0].new_ones(len(alike))
            missing = [index for index, grad in enumerate(grads) if grad is None]
            if missing:
                has_grad[missing] = 0
            own = torch.cat([*flat, has_grad])
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
            *parts, n_grads = total.split([*(_local(parameter).numel() for parameter in alike), len(alike)])
            # Only who lacks a gradient asks whether another rank has one: the question waits for the device.
            lacks = any(parameter.grad is None for parameter in alike)
            has_grad = (n_grads != 0).tolist() if lacks else [True] * len(alike)
            for parameter, part, has in zip(alike, parts, has_grad):
                if not has:
                    continue
                if isinstance(parameter, DTensor):
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    grad = _local(parameter.grad)
                    grad.copy_(part.view_as(grad))
                else:
                    parameter.grad = part.view_as(parameter)
        self._works.clear()

    def make_equal(self, frozen: Sequence[torch.Tensor]) -> None:
        """Gives all replicas the weights and buffers of the first, and `frozen` parameters, which are not trained."""
        self._copy_first([*self.parameters, *frozen, *self._buffers()])

    def share_buffers(self) -> None:
        """Gives all replicas the buffers of the first, which forwards may have changed, such as the statistics of a batch norm."""
        self._copy_first(self._buffers())

    def _copy_first(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.is_shared:
            for tensor in tensors:
                _broadcast(_local(tensor.data), self.ranks[0], self._group)

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """The sum of the squares of all gradients, of sharded ones the part that is here."""
        return _squares(self.parameters, device)

    def whole_squared_norm(self, device: torch.device) -> torch.Tensor:
        """The sum of the squares of all gradients. All ranks that hold parts of sharded parameters must ask."""
        sharded: dict[Any, list[torch.nn.Parameter]] = {}
        whole = []
        for parameter in self.parameters:
            if isinstance(parameter, DTensor):
                sharded.setdefault((parameter.device_mesh, tuple(parameter.placements)), []).append(parameter)
            else:
                whole.append(parameter)
        total = _squares(whole, device)
        for (mesh, placements), parameters in sharded.items():
            part = _squares(parameters, device)
            for dimension, placement in enumerate(placements):
                if placement.is_shard():
                    dist.all_reduce(part, group=mesh.get_group(dimension))
            total += part
        return total

    def scale(self, factor: float) -> None:
        """Multiplies all gradients by a factor."""
        for parameter in self.parameters:
            grad = _grad(parameter)
            if grad is not None:
                grad.mul_(factor)


class Updated(Bucket):
    """A bucket with its optimizer."""

    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    _square: torch.Tensor | None = None

    def make_optimizer(self, optimizer: MakeOptimizer, scheduler: MakeScheduler | None) -> None:
        """Makes its optimizer, which may copy the weights: they must be those of all replicas by then."""
        if self.parameters:
            self.optimizer = _checked(optimizer(self.parameters), self.parameters)
            self.scheduler = scheduler(self.optimizer) if scheduler else None

    def take_optimizer(self, first: Updated) -> None:
        """Takes that of the first update of a window, which serves all."""
        self.optimizer, self.scheduler = first.optimizer, first.scheduler

    def begin(self) -> None:
        super().begin()
        self._square = None

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """The sum of the squares of all gradients, which an update may have kept."""
        return super().squared_norm(device) if self._square is None else self._square

    def update(self, keeps_norm: bool) -> None:
        """Updates the weights; `keeps_norm` where it is asked for later, when the next update may have other gradients there."""
        if keeps_norm and self.parameters:
            self._square = super().squared_norm(self.parameters[0].device)
        if self.optimizer is not None:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()


def buffers_of(modules: Sequence[torch.nn.Module]) -> Callable[[], list[torch.Tensor]]:
    """What returns the buffers that the modules have by then."""
    return lambda: [buffer for module in modules for buffer in module.buffers()]


def _checked(made: Any, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer, if it is one of some of these parameters and of no others."""
    groups = getattr(made, "param_groups", None)
    if groups is None or not callable(getattr(made, "step", None)):
        raise Error(f"`optimizer` returned a {type(made).__name__}: return an optimizer, such as torch.optim.AdamW(parameters)")
    held, known = [p for group in groups for p in group["params"]], {id(p) for p in parameters}
    if not held or any(id(p) not in known for p in held):
        raise Error(
            f"`optimizer` returned a {type(made).__name__} of {'other' if held else 'no'} parameters, which would not train those it was "
            "given: make one of the parameters that it is given, or of some of them"
        )
    optimizer: torch.optim.Optimizer = made
    return optimizer


def _squares(parameters: Sequence[torch.nn.Parameter], device: torch.device) -> torch.Tensor:
    """The sum of the squares of gradients, as far as they are here."""
    grads = [grad for grad in map(_grad, parameters) if grad is not None]
    squares = ((grad.abs() if grad.is_complex() else grad).double().square().sum() for grad in grads)
    return sum(squares, torch.zeros((), dtype=torch.float64, device=device))


def _grad(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The part of a gradient that is here, if there is one."""
    if parameter.grad is None:
        return None
    if parameter.grad.layout != torch.strided:
        raise Error("a gradient is sparse, and replicas sum dense ones: make the embedding with sparse=False")
    return _local(parameter.grad)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or the part of a sharded one that is here."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _broadcast(tensor: torch.Tensor, source: int, group: Any) -> None:
    """Overwrites a tensor by that of another rank. It is sent as bytes: backends know few types."""
    if tensor.numel() == 0:
        return
    sent = tensor.contiguous().reshape(-1)
    dist.broadcast(sent.view(torch.uint8), source, group=group)
    if not tensor.is_contiguous():
        tensor.copy_(sent.view_as(tensor))
