"""Lightning's `Trainer` over a pipeline. It knows lightning 2."""

from __future__ import annotations

from typing import Any, Dict

from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from .. import Error
from ._module import Pipelined
from ._train import depth_of, train


class PipelineStrategy(DDPStrategy):
    """A strategy whose ranks are one pipeline, or several that share the batches.

    `Trainer(strategy=PipelineStrategy("chimera", micro_batches=8), devices=4)` trains the model that the LightningModule
    holds as `attribute`: within `training_step` a call of it, `self.model(**batch).loss`, trains the batch through the
    pipeline. Options are the arguments of `chimera_pipeline.torch.train`. The optimizer is what `configure_optimizers`
    returns, and automatic optimization, accumulation, rates, callbacks, logs and checkpoints are Lightning's. Checkpoints have
    the names of the whole model, so that another schedule and number of ranks load them.
    Mixed precision is the option `autocast` here.
    """

    def __init__(self, schedule: Any = "1f1b", *, attribute: str = "model", **options: Any) -> None:
        super().__init__()
        self._attribute, self._options = attribute, {"schedule": schedule, **options, "optimizer": None}

    @property
    def pipelined(self) -> Pipelined:
        """The pipeline, once training or evaluation has begun."""
        found = getattr(self.lightning_module, self._attribute, None)
        if not isinstance(found, Pipelined):
            raise Error("the pipeline is made when training or evaluation begins: call `fit` or `validate` before")
        return found

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        depth = depth_of(**{key: value for key, value in self._options.items() if key in ("schedule", "depth")})
        return {"num_replicas": self.world_size // depth, "rank": self.global_rank // depth}

    def setup(self, trainer: Any) -> None:
        module: Any = self.lightning_module
        precision: Any = self.precision_plugin
        if type(precision) not in (Precision, DoublePrecision):
            raise Error("Lightning cannot mix precisions of stages: leave `precision` out, and give the strategy `autocast`")
        model = getattr(module, self._attribute, None)
        if not isinstance(model, nn.Module):
            raise Error(f'{type(module).__name__} has no module `{self._attribute}` to train in stages: name it, attribute="…"')
        if not isinstance(model, Pipelined):
            precision.convert_module(model)
            setattr(module, self._attribute, Pipelined(train(model, **{"device": self.root_device, **self._options})))
        # The plugin would take the norm of the gradients of this rank alone.
        precision.clip_grad_by_norm = lambda optimizer, clip_val: self.pipelined.clip_grad_norm_(clip_val)
        # Without the part of DDPStrategy, which makes the weights of all ranks equal.
        super(DDPStrategy, self).setup(trainer)

    def _setup_model(self, model: nn.Module) -> Any:
        return model

    def optimizer_state(self, optimizer: Any) -> Dict[str, Any]:
        return self.pipelined.runtime.optimizer_state_dict([optimizer])

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"]):
            self.pipelined.runtime.load_optimizer_state_dict(state, [optimizer])
