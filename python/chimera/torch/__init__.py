"""Proven programs, run by PyTorch: pipelines of `nn.Module` stages over torch.distributed."""

from ._runtime import Runtime, StepReport

__all__ = ["Runtime", "StepReport"]
