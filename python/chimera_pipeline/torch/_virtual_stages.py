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
from torch.autograd.graph import Node
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import _get_grad_fn_or_grad_acc
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime
from torch.utils._pytree import tree_map_only

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

    def _to_tensor(self, arg: Any) -> Any:
        """Returns a stand-in for an input or a target while shapes are learnt. PyTorch's knows targets of one tensor."""
        if type(arg) in (dict, list, tuple):
            return tree_map_only(torch.Tensor, super()._to_tensor, arg)
        return super()._to_tensor(arg)

    # Messages are contiguous, and PyTorch takes the strides that it sends for those that it receives.

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        return _contiguous(super().forward_maybe_with_nosync(*args, **kwargs))

    def _compute_outputs(self, *args: Any, **kwargs: Any) -> Any:
        return _contiguous(super()._compute_outputs(*args, **kwargs))

    def _compute_input_grads(self, *args: Any, **kwargs: Any) -> Any:
        return _contiguous(super()._compute_input_grads(*args, **kwargs))

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        """A part of the backward. Where an output leads to no input, the input half is all of it.

        PyTorch's weight half knows the parameters alone that lie between an output and an input which needs a gradient.
        There is none behind a frozen stage, nor where a stage detaches its input. The whole is not left to the weight
        half: PyTorch detaches the outputs of the last stage before that.
        """
        is_whole = backward_type == "input" and not _lead_to(bwd_kwargs["stage_output"], bwd_kwargs["input_values"])
        if is_whole:
            outputs = bwd_kwargs["stage_output"]
            backward_type, bwd_kwargs = "full", {**bwd_kwargs, "stage_output": outputs[0] if self.is_last else outputs}
        grads, groups = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward=last_backward)
        return _contiguous(grads), [] if is_whole else groups

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
    of all losses, or of their sum without `scale_grads`, and are added to those that are there; sums over replicas on
    other ranks are left to the caller.
    `micro_batch_losses` has the losses of the last step that this rank computed, by micro-batch.
    """

    # PyTorch's
    _has_backward: bool
    _stages_forward_initialized: bool
    _stages_backward_initialized: bool
    _keeps_outputs: bool

    def __init__(
        self,
        stages: list[VirtualStage],
        rows: list[str],
        ranks: dict[int, int],
        n_micro_batches: int,
        loss_fn: Any,
        *,
        scale_grads: bool = True,
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
        self.n_stages = stages[0]._n_stages
        self.micro_batch_losses: dict[int, torch.Tensor] = {}
        self._divisor = n_micro_batches if scale_grads else 1
        self._outputs: dict[int, Any] = {}
        self._graphs: dict[tuple[int, int], torch.Tensor] = {}

    def forget_shapes(self) -> None:
        """Learns the shapes of messages anew in the next step, as all ranks must."""
        self._stages_forward_initialized = self._stages_backward_initialized = False

    # PyTorch finds losses by their place in the order of computation, and knows one last stage.

    def _maybe_compute_loss(self, stage: Any, output: Any, target_mbs: Any, mb_index: int, *rest: Any) -> None:
        if not stage.is_last:
            return
        if self._keeps_outputs:
            self._outputs[mb_index] = output
        if self._loss_fn is not None and (target_mbs is not None or self._has_backward):
            loss = self._compute_loss(output, target_mbs[mb_index], *rest)
            self.micro_batch_losses[mb_index] = loss.detach()
            if self._has_backward:
                self._graphs[stage.stage_index, mb_index] = loss / self._divisor

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> torch.Tensor | None:
        return self._graphs.pop((stage.stage_index, mb_index), None)

    def _update_losses(self, stages: Any, losses: list[torch.Tensor] | None) -> None:
        if losses is not None:
            losses[:] = [loss for _, loss in sorted(self.micro_batch_losses.items())]

    def _step_microbatches(
        self,
        arg_mbs: Any = None,
        kwarg_mbs: Any = None,
        target_mbs: Any = None,
        losses: Any = None,
        return_outputs: bool = True,
        loss_kwargs: Any = None,
    ) -> None:
        self.micro_batch_losses.clear()
        self._graphs.clear()
        self._outputs.clear()
        self._keeps_outputs = return_outputs
        super()._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        """The outputs of all last stages of this rank, in the order of micro-batches."""
        return super()._merge_outputs([output for _, output in sorted(self._outputs.items())])


def _contiguous(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.contiguous(), values)


def _lead_to(outputs: Any, inputs: Any) -> bool:
    """Whether the graph of each output that has one leads to an input which needs a gradient.

    PyTorch has None instead of an output that needs no gradient, such as a mask beside the hidden state.
    """
    roots = [_get_grad_fn_or_grad_acc(output) for output in outputs if output is not None]
    ends = {_get_grad_fn_or_grad_acc(x) for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad}

    def leads(root: Node) -> bool:
        seen, stack = set(), [root]
        while stack:
            node = stack.pop()
            if node in ends:
                return True
            if node not in seen:
                seen.add(node)
                stack += [child for child, _ in node.next_functions if child is not None]
        return False

    return all(leads(root) for root in roots if root is not None)


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
