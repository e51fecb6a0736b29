"""Programs behind the signature of PyTorch's schedules: `step` and `eval` compute all pipes and sum over replicas."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_leaves

from .. import Error
from . import _checks
from ._replicas import Replicas, gathered
from ._virtual_stages import VirtualSchedule, VirtualStage

_FAILED, _TRAINS, _EVALUATES = 0, 1, 2


class Inputs(NamedTuple):
    """Micro-batches of a step, as PyTorch's schedules take them."""

    arg_mbs: Optional[List[Any]]
    kwarg_mbs: Optional[List[Any]]
    target_mbs: Optional[List[Any]]


class ReplicatedSchedule(VirtualSchedule):
    """A schedule of PyTorch whose gradients, after each `step`, are those of all pipes on each replica of a stage.

    They are added to those that are there, as PyTorch's own schedules do. `losses` gets those of all pipes, by
    micro-batch, on ranks with a last stage; outputs are those of the micro-batches whose last stage is here, in their order.
    All ranks of the group must call `step` and `eval` together. What one rank refuses is raised on all.
    """

    def __init__(
        self,
        stages: list[VirtualStage],
        rows: list[str],
        ranks: dict[int, int],
        n_micro_batches: int,
        loss_fn: Any,
        *,
        scale_grads: bool,
        replicas: Replicas,
        group: Any,
    ) -> None:
        super().__init__(stages, rows, ranks, n_micro_batches, loss_fn, scale_grads=scale_grads)
        self.all_losses = torch.zeros(n_micro_batches, dtype=torch.float64)
        """The losses of the last step by micro-batch, on all ranks."""
        self._replicas, self._replicas_group, self._guard = replicas, group, _checks.Guard()
        self._is_first, self._is_last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
        self._own_device = stages[0].device
        self._shapes: list[int] | None = None

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[torch.Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: Any = None,
        kwarg_mbs: Any = None,
        target_mbs: Any = None,
        finalize_gradients: bool = True,
        **kwargs: Any,
    ) -> Any:
        """PyTorch's `step`: of a batch, or of micro-batches that are there."""

        def inputs() -> Inputs:
            if not finalize_gradients:
                raise Error("gradients of replicas are summed in each step: leave `finalize_gradients` as it is")
            return Inputs(*self._get_microbatch_inputs(args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs))

        return self.run(inputs, losses=losses, return_outputs=return_outputs, loss_kwargs=loss_kwargs)

    def evaluate_inputs(self, inputs: Callable[[], Inputs]) -> None:
        """The forwards alone, of inputs that `inputs` makes."""
        before, self._has_backward = self._has_backward, False
        try:
            self.run(inputs)
        finally:
            self._has_backward = before

    def run(
        self,
        inputs: Callable[[], Inputs],
        *,
        losses: list[torch.Tensor] | None = None,
        return_outputs: bool = False,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """A step of the inputs that `inputs` makes. If that fails on a rank, all raise: the others would wait for it."""
        made = self._agree(inputs)
        with self._guard.step():
            held = self._replicas.set_gradients_aside() if self._has_backward else []
            outputs = super().step(
                **made._asdict(), losses=losses, return_outputs=return_outputs, loss_kwargs=loss_kwargs
            )
            if self._has_backward:
                self._replicas.sum_gradients(held)
                self._replicas.share_buffers()
            self._share_losses(losses)
        return outputs

    def _agree(self, inputs: Callable[[], Inputs]) -> Inputs:
        """The inputs, once all ranks have theirs. Shapes of messages are learnt anew where some rank has others than before."""
        made, failure = Inputs(None, None, None), None
        try:
            if self._has_backward:
                _checks.Guard.check_gradients()
            made = inputs()
            self._check(made)
            if self._replicas.is_meta:
                raise Error("a stage has parameters on the meta device, which have no values: call to_empty and give it weights first")
        except Exception as error:
            failure = error
        act = _FAILED if failure is not None else _TRAINS if self._has_backward else _EVALUATES
        own = torch.tensor([act, _hash_of_shapes(made)], device=self._own_device)
        acts, shapes = gathered(own, self._replicas_group).T.tolist()
        if _FAILED in acts:
            _checks.raise_together(failure, "take its batch", self._replicas_group)
        if len(set(acts)) > 1:
            ranks = [rank for rank, theirs in enumerate(acts) if theirs == _EVALUATES]
            raise Error(f"ranks {ranks} of the group evaluate and the others train: call the same on all ranks")
        if self._shapes not in (None, shapes):
            self.forget_shapes()
        self._shapes = shapes
        self._replicas.prepare()
        return made

    def _check(self, made: Inputs) -> None:
        needs, n = f"worker {self.rank} holds stage", self._n_microbatches
        if self._is_first and not any(made.arg_mbs or ()) and not any(made.kwarg_mbs or ()):
            raise Error(f"{needs} 0 and needs `x`: give it the batch of its pipeline")
        if self._is_last and made.target_mbs is None and self._has_backward:
            raise Error(f"{needs} {self.n_stages - 1} and needs `target`: give it the batch of its pipeline")
        for name, given in made._asdict().items():
            if given is not None and len(given) != n:
                raise Error(f"`{name}` has {len(given)} micro-batches, and the program {n}: give {n}")
        shapes = [_shapes_of(args) for args in made.arg_mbs or ()]
        for micro_batch, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise Error(f"micro-batch {micro_batch} is {shape} and the first {shapes[0]}: give all of a step one shape")

    def _share_losses(self, losses: list[torch.Tensor] | None) -> None:
        """Gives every rank the losses of all pipes."""
        own = torch.zeros(self._n_microbatches, dtype=torch.float64, device=self._own_device)
        for micro_batch, loss in self.micro_batch_losses.items():
            own[micro_batch] = loss.double().reshape(())
        # A micro-batch has its loss on one rank, so that the sum adds zeros alone.
        self.all_losses = gathered(own, self._replicas_group).sum(0)
        if losses is not None and self._is_last and self.micro_batch_losses:
            like = next(iter(self.micro_batch_losses.values()))
            losses[:] = list(self.all_losses.to(like.dtype).unbind())


def _shapes_of(args: Any) -> tuple[tuple[Any, ...], ...]:
    return tuple((*leaf.shape, str(leaf.dtype)) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))


def _hash_of_shapes(made: Inputs) -> int:
    """A number that is another where the first micro-batch has other shapes."""
    return hash(tuple(_shapes_of(given[:1]) for given in made if given))
