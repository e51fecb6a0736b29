"""Accelerate over a pipeline. It knows accelerate 1. Its interface has no place for a plugin, so this is a subclass."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from .. import Error
from ._module import Pipelined
from ._train import depth_of, train


class PipelineAccelerator(Accelerator):
    """An `Accelerator` whose ranks, started by `torchrun` or `accelerate launch`, are one pipeline, or several that share the batches.

    `pipeline` has the arguments of `chimera_pipeline.torch.train`, such as `{"schedule": "chimera", "micro_batches": 8}`. A loop
    stays as it is: `prepare` gives a model whose `model(**batch).loss` trains a batch through the pipeline, `backward` adds its
    gradients, `clip_grad_norm_` counts those of all ranks, `accumulate`, `save_state`, `load_state` and `save_model` are
    Accelerate's. What is saved has the names of the whole model, so that another schedule and number of ranks load it.

    All ranks of a pipeline get the same batches, and losses are the same everywhere: do not gather them. A scheduler takes one
    step with each update. Mixed precision is the option `autocast` in `pipeline`.
    """

    _models: Any
    _optimizers: Any
    _dataloaders: Any

    def __init__(self, *args: Any, pipeline: Dict[str, Any], **options: Any) -> None:
        super().__init__(*args, **options)
        if not dist.is_initialized():
            raise Error("a pipeline has several ranks: start the script by `torchrun --nproc-per-node N` or `accelerate launch --num-processes N`")
        if self.mixed_precision != "no":
            raise Error('Accelerate cannot mix precisions of stages: leave mixed_precision out, and give `pipeline` "autocast"')
        self._pipeline = {"device": self.device, **pipeline, "optimizer": None}
        self._depth = depth_of(**{key: value for key, value in pipeline.items() if key in ("schedule", "depth")})

    @property
    def pipelined(self) -> Pipelined:
        """The model, once it is prepared."""
        found = [model for model in self._models if isinstance(model, Pipelined)]
        if len(found) != 1:
            raise Error(f"{len(found)} models are prepared: prepare one, before its optimizer is used")
        return found[0]

    def prepare_model(self, model: nn.Module, device_placement: Optional[bool] = None, evaluation_mode: bool = False) -> nn.Module:
        if self._models and model not in self._models:
            raise Error("a model is prepared already: make an accelerator for each model of its own")
        prepared = model if isinstance(model, Pipelined) else Pipelined(train(model, **self._pipeline))
        if prepared not in self._models:
            self._models.append(prepared)
        return prepared

    def prepare_data_loader(self, data_loader: Any, device_placement: Optional[bool] = None, slice_fn_for_dispatch: Any = None) -> Any:
        if getattr(data_loader, "_is_accelerate_prepared", False):
            return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        if self.dispatch_batches:
            raise Error("batches cannot be dispatched to pipelines: leave dispatch_batches out")
        prepared = prepare_data_loader(
            data_loader,
            self.device,
            num_processes=dist.get_world_size() // self._depth,
            process_index=dist.get_rank() // self._depth,
            split_batches=self.split_batches,
            put_on_device=self.device_placement if device_placement is None else device_placement,
            rng_types=["torch", "generator"],  # ranks of a pipeline draw the same samples
            dispatch_batches=False,
            even_batches=self.even_batches,
            use_seedable_sampler=self.use_seedable_sampler,
            non_blocking=self.non_blocking,
            use_stateful_dataloader=self.use_stateful_dataloader,
        )
        self._dataloaders.append(prepared)
        return prepared

    def prepare_optimizer(self, optimizer: Any, device_placement: Optional[bool] = None) -> Any:
        if getattr(optimizer, "_is_accelerate_prepared", False):
            return super().prepare_optimizer(optimizer, device_placement)
        prepared = _Optimizer(optimizer, self)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        prepared = super().prepare_scheduler(scheduler)
        prepared.split_batches = True
        return prepared

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        if norm_type != 2:
            raise Error(f"norm_type={norm_type!r}: a pipeline has the norm of type 2 alone")
        return self.pipelined.clip_grad_norm_(max_norm)


class _Optimizer(AcceleratedOptimizer):
    """An optimizer that is saved and loaded by names of parameters."""

    def __init__(self, optimizer: Any, accelerator: PipelineAccelerator) -> None:
        super().__init__(optimizer, device_placement=False)
        self._pipeline_of = accelerator

    def state_dict(self) -> Dict[str, Any]:
        return self._pipeline_of.pipelined.runtime.optimizer_state_dict([self.optimizer])

    def load_state_dict(self, state_dict: Any) -> None:
        self._pipeline_of.pipelined.runtime.load_optimizer_state_dict(state_dict, [self.optimizer])
