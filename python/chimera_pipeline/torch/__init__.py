"""Proven programs, run by PyTorch: pipelines of `nn.Module` stages over torch.distributed."""

from ._auxiliary import add_loss
from ._cut import Cut, cut
from ._launch import launch
from ._module import Pipelined, PipelineOutput
from ._pieces import Pieces
from ._pipe import from_pipe
from ._pytorch import PyTorchRuntime, pytorch_runtime
from ._runtime import Runtime
from ._state import StepReport
from ._train import Training, train

__all__ = [
    "Cut",
    "Pieces",
    "PipelineOutput",
    "Pipelined",
    "PyTorchRuntime",
    "Runtime",
    "StepReport",
    "Training",
    "add_loss",
    "cut",
    "from_pipe",
    "launch",
    "pytorch_runtime",
    "train",
]
