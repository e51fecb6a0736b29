"""A pipeline that any training loop takes for a model."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import nn

from .. import Error
from ._runtime import Runtime
from ._state import prefix as name_before


class PipelineOutput(NamedTuple):
    """What a pipeline returns for a batch."""

    loss: Optional[torch.Tensor]
    """The mean loss of the batch, the same on every rank; None for a batch without labels."""
    output: Any = None
    """What the whole model returns for a batch without labels, on the first rank of each pipeline."""


class Pipelined(nn.Module):
    """The stages of this rank as a module: `model(**batch).loss.backward()`.

    A call trains the whole batch through the pipeline, forward and backward, and keeps the gradients; `backward` of the loss
    adds them, times what it is given, to those of the parameters. So a loss may be divided, gradients may be accumulated over
    several calls, and the optimizer is the caller's. Where gradients are off a call evaluates, and without labels it predicts.

    Every rank must make the same calls. `runtime` is made with `optimizer=None`.
    """

    runtime: Runtime

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        if runtime.optimizers or runtime.program.to_dict()["update"] != "flush":
            raise Error("as a module, a pipeline leaves its updates to the caller: choose a synchronous schedule, and make it with optimizer=None")
        self.of_rank = nn.ModuleDict({str(stage): module for stage, module in runtime.modules.items()})
        # A runtime has no parameters of its own, and does not move with the module.
        self.__dict__["runtime"] = runtime
        register: Any = self.register_load_state_dict_pre_hook
        register(_take_own)

    def forward(self, x: Any = None, target: Any = None, **batch: Any) -> PipelineOutput:
        target = batch.pop("labels", target)
        if target is None and not torch.is_grad_enabled():
            return PipelineOutput(None, self.runtime.predict(x, **batch))
        if not torch.is_grad_enabled():
            return PipelineOutput(self._scalar(self.runtime.evaluate(x, target, **batch)))
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in parameters]
        try:
            loss = self.runtime.step(x, target, **batch)
            made = [parameter.grad for parameter in parameters]
        finally:
            for parameter, gradient in zip(parameters, before):
                parameter.grad = gradient
        # The first tensor is there for ranks whose stages have nothing to train.
        anchor = self._scalar(0.0).requires_grad_()
        return PipelineOutput(_Loss.apply(self._scalar(loss), made, anchor, *parameters))

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """All tensors of the model on rank 0, elsewhere nothing. Every rank must call it."""
        destination = OrderedDict() if destination is None else destination
        destination.update({prefix + name: value for name, value in self.runtime.state_dict().items()})
        return destination

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients of all ranks so that their norm is at most `max_norm`, and returns the norm that they had."""
        return self._scalar(self.runtime.clip_grad_norm_(max_norm))

    def _scalar(self, value: float) -> torch.Tensor:
        # Gradients in 64 bits are multiplied by what a loop makes of it.
        return torch.tensor(value, dtype=torch.float64, device=self.runtime.device)


def _take_own(
    module: Pipelined, state: Dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
) -> None:
    """Gives the tensors of the whole model in a state the names that the stages of this rank have here."""
    whole = {name: state.pop(name) for name in list(state) if name.startswith(prefix)}
    for stage, part in module.runtime.modules.items():
        before = prefix + name_before(stage, module.runtime.has_whole_names)
        for name in part.state_dict():
            if before + name in whole:
                state[f"{prefix}of_rank.{stage}.{name}"] = whole[before + name]


class _Loss(torch.autograd.Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        (factor,), gradients = given, ctx.gradients
        ctx.gradients = None
        if gradients is None:
            raise Error("the gradients of this loss were taken already: call the model again")
        scaled = [None if gradient is None else gradient * factor.to(gradient.dtype) for gradient in gradients]
        return (None, None, None, *scaled)
