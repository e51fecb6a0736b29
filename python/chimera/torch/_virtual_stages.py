"""PyTorch's pipelining runtime, extended so that it carries out programs of several pipes.

PyTorch knows one pipe: stage 0 is the first, the last number is the last, a stage is on one rank, and every micro-batch
goes through every stage. Here stage `s` of pipe `p` is the *virtual stage* `p * S + s`, and a micro-batch goes through
the virtual stages of its own pipe. This file says where PyTorch must think of a pipe and not of all stages. It uses classes of
PyTorch that are private, and nothing of this package, so that the file can be used by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

WAIT_SEND_F = _ComputationType.WAIT_SEND_F
"""What torch before 2.15 does not have: importing this file fails there."""


class VirtualStage(PipelineStage):
    """Stage `index % n_stages` of pipe `index // n_stages`, of `n_pipes` pipes."""

    def __init__(
        self, module: torch.nn.Module, index: int, n_stages: int, n_pipes: int, device: torch.device, group: Any = None
    ) -> None:
        super().__init__(module, index, n_pipes * n_stages, device, group=group)
        self._n_stages = n_stages

    @property
    def is_first(self) -> bool:
        return bool(self.stage_index % self._n_stages == 0)

    @property
    def is_last(self) -> bool:
        return bool((self.stage_index + 1) % self._n_stages == 0)

    # PyTorch hands values over within a rank where numbers follow each other, which the last stage of a pipe and the
    # first of the next do too. It also does so when it evaluates, where no backward has made a gradient.

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        if not self.is_first:
            super().set_local_fwd_input(prev_stage_outputs, mb_index)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        if self.is_first or not self.has_backward:
            return ()
        return super().get_local_bwd_output(mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if not self.is_last and self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """The weight half; of a first stage, whose input half does nothing, the whole backward.

        PyTorch asks for stage 0 here, and `is_first` in the input half.
        """
        if not (self.has_backward and self.is_first):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)
            return
        del self.dw_runner[bwd_chunk_id]
        inputs, _, output, grads = self.backward_state.pop(bwd_chunk_id)
        arguments = {"stage_output": output, "output_grads": grads, "input_values": inputs}
        self.backward_maybe_with_nosync("full", arguments, last_backward=last_backward)


class VirtualSchedule(_PipelineScheduleRuntime):
    """Carries out rows of actions on virtual stages.

    `rows` are the lines of the program's CSV, by rank, and `ranks` says where each virtual stage is. `stages` are those of
    this rank; if it has a stage in several pipes, these virtual stages share a module. Gradients are those of the mean
    of all losses, and are added to those that are there; sums over replicas on other ranks are left to the caller.
    `micro_batch_losses` has the losses of the last step that this rank computed, by micro-batch.
    """

    _has_backward: bool  # PyTorch's

    def __init__(
        self, stages: list[VirtualStage], rows: list[str], ranks: dict[int, int], n_micro_batches: int, loss_fn: Any
    ) -> None:
        # PyTorch would scale the gradients of a module once for each of its virtual stages.
        super().__init__(list(stages), n_micro_batches, loss_fn=loss_fn, scale_grads=False)
        # `_load_csv` would read the rows too, but asks for every micro-batch in every stage.
        self.pipeline_order_with_comms = {
            rank: [_Action.from_str(cell) for cell in row.split(",")] for rank, row in enumerate(rows)
        }
        sharded = {stage.stage_index for stage in stages if isinstance(stage.submod, FSDPModule)}
        own = self.pipeline_order_with_comms[self.rank]
        self.pipeline_order_with_comms[self.rank] = _with_parameters_gathered(own, sharded)
        self.stage_index_to_group_rank = ranks
        for stage in stages:
            stage.stage_index_to_group_rank = ranks
        self.micro_batch_losses: dict[int, torch.Tensor] = {}
        self._graphs: dict[tuple[int, int], torch.Tensor] = {}

    def evaluate(self, **inputs: Any) -> None:
        """The forwards alone. (PyTorch's `eval` joins the outputs too.)"""
        before, self._has_backward = self._has_backward, False
        try:
            self.step(return_outputs=False, **inputs)
        finally:
            self._has_backward = before

    # PyTorch finds losses by their place in the order of computation, and knows one last stage.

    def _maybe_compute_loss(self, stage: Any, output: Any, target_mbs: Any, mb_index: int, *rest: Any) -> None:
        if stage.is_last and self._loss_fn is not None:
            loss = self._compute_loss(output, target_mbs[mb_index], *rest)
            self.micro_batch_losses[mb_index] = loss.detach()
            if self._has_backward:
                self._graphs[stage.stage_index, mb_index] = loss / self._n_microbatches

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> torch.Tensor | None:
        return self._graphs.pop((stage.stage_index, mb_index), None)

    def _update_losses(self, stages: Any, losses: list[torch.Tensor] | None) -> None:
        if losses is not None:
            losses[:] = [loss for _, loss in sorted(self.micro_batch_losses.items())]

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
        self.micro_batch_losses.clear()
        self._graphs.clear()
        super()._step_microbatches(*args, **kwargs)


def _with_parameters_gathered(row: list[Any], stages: set[int]) -> list[Any]:
    """The row, in which FSDP gathers the parameters of `stages` before their first action and frees them at the end.

    When it trains, the reduction of the gradients frees them before.
    """
    gathered: set[int] = set()
    out = []
    for action in row:
        for stage in sorted({part.stage_index for part in action.sub_actions or (action,)} & (stages - gathered)):
            gathered.add(stage)
            out.append(_Action(stage, _ComputationType.UNSHARD))
        out.append(action)
    return out + [_Action(stage, _ComputationType.RESHARD) for stage in sorted(gathered)]
