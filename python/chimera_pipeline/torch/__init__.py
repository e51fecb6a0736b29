"""Proven programs, run by PyTorch: pipelines of `nn.Module` stages over torch.distributed."""

from ._pytorch import PyTorchRuntime, pytorch_runtime
from ._runtime import Runtime, StepReport

__all__ = ["PyTorchRuntime", "Runtime", "StepReport", "pytorch_runtime"]
