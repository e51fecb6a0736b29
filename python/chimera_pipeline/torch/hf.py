"""The Trainer of transformers over a pipeline. It knows transformers 5."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

import torch
from torch import nn
from transformers import Trainer

from .. import Error
from ._module import Pipelined
from ._train import Training, train

_OPTIMIZER, _SCHEDULER = "optimizer.pt", "scheduler.pt"
"""Names of files in a checkpoint of transformers."""


class _Unprepared:
    """An accelerator that leaves batches whole: all ranks of a pipeline take the same."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def prepare(self, loader: Any) -> Any:
        return loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


class PipelineTrainer(Trainer):
    """A `Trainer` whose ranks, started by `torchrun`, are one pipeline.

    `pipeline` has the arguments of `chimera_pipeline.torch.train`, such as `{"schedule": "chimera", "micro_batches": 8}`.
    Optimizer, rates, clipping, logs, callbacks and checkpoints of the model are the Trainer's; a batch is
    `per_device_train_batch_size` samples, which all ranks share. Another schedule and number of ranks resume from a checkpoint.
    Not there: gradient accumulation (give more micro-batches), mixed precision by the Trainer, and predictions.
    """

    model: Any
    model_wrapped: Any
    accelerator: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, *args: Any, pipeline: Dict[str, Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self._pipeline = {**pipeline, "optimizer": None}
        if self.args.gradient_accumulation_steps != 1:
            raise Error("a pipeline has micro-batches: leave gradient_accumulation_steps out, and give `pipeline` more micro_batches")
        if self.args.fp16 or self.args.bf16:
            raise Error('the Trainer cannot mix precisions of stages: leave fp16 and bf16 out, and give `pipeline` "autocast"')

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        if not isinstance(self.model_wrapped, Pipelined):
            self.model_wrapped = Pipelined(train(self.model, **self._pipeline))
        wrapped: nn.Module = self.model_wrapped
        return wrapped

    @property
    def runtime(self) -> Training:
        """What trains, once the first step has begun."""
        if not isinstance(self.model_wrapped, Pipelined):
            raise Error("the pipeline is made when training or evaluation begins: call `train()` or `evaluate()` before")
        runtime: Training = self.model_wrapped.__dict__["runtime"]
        return runtime

    def _get_dataloader(self, *args: Any, **options: Any) -> Any:
        accelerator, self.accelerator = self.accelerator, _Unprepared(self.accelerator)
        try:
            return super()._get_dataloader(*args, **options)
        finally:
            self.accelerator = accelerator

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # Ranks use other amounts of random numbers, and must draw the same samples.
        dataset: Any = train_dataset if train_dataset is not None else self.train_dataset
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))

    def training_step(self, model: nn.Module, inputs: Dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        loss = self.runtime.step(**self._prepare_inputs(inputs))
        return torch.tensor(loss, device=self.args.device)

    def prediction_step(self, model: nn.Module, inputs: Dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        loss = self.runtime.evaluate(**self._prepare_inputs(inputs))
        return torch.tensor(loss, device=self.args.device), None, None

    def _clip_grad_norm(self, model: nn.Module) -> float:
        return self.runtime.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        return self.runtime.clip_grad_norm_(float("inf")) if grad_norm is None else float(grad_norm)

    def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
        folder: Any = self.args.output_dir if output_dir is None else output_dir
        self.runtime.save_pretrained(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = self.runtime.optimizer_state_dict([self.optimizer])
        if self.args.should_save:
            torch.save(state, os.path.join(output_dir, _OPTIMIZER))
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, _SCHEDULER))

    def _load_optimizer_and_scheduler(self, checkpoint: Optional[str]) -> None:
        if checkpoint is None:
            return
        state, rates = (torch.load(os.path.join(checkpoint, name), map_location="cpu") for name in (_OPTIMIZER, _SCHEDULER))
        self.runtime.load_optimizer_state_dict(state, [self.optimizer])
        self.lr_scheduler.load_state_dict(rates)
