"""Callbacks for `train` that log each step by the packages of others, on rank 0.

`train(model, callbacks=[loggers.wandb(project="mine")], …)`; each package is imported when its logger is made.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict

import torch.distributed as dist

from .. import Error
from ._train import Callback, Training


def _values(runtime: Training) -> Dict[str, float]:
    assert runtime.last is not None, "a step was trained"
    made = {"loss": runtime.last.loss, "grad_norm": runtime.last.grad_norm}
    if runtime.last.auxiliary:
        made["auxiliary_loss"] = runtime.last.auxiliary
    rates = {group["lr"] for optimizer in runtime.optimizers for group in optimizer.param_groups}
    return {**made, "learning_rate": float(max(rates))} if rates else made


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Error(f"the logger needs the package `{name.partition('.')[0]}` ({error}): install it, or use another logger") from error


def _on_first(make: Callable[[], Callable[[Dict[str, float], int], Any]]) -> Callback:
    """A callback of rank 0; what `make` returns logs the values of a step."""
    if dist.is_initialized() and dist.get_rank() != 0:
        return lambda runtime: None
    log = make()
    return lambda runtime: log(_values(runtime), runtime.n_steps)


def wandb(**init: Any) -> Callback:
    """Logs to Weights & Biases; options are those of `wandb.init`."""

    def make() -> Callable[[Dict[str, float], int], Any]:
        run = _package("wandb").init(**init)
        return lambda values, step: run.log(values, step=step)

    return _on_first(make)


def trackio(**init: Any) -> Callback:
    """Logs to trackio; options are those of `trackio.init`."""

    def make() -> Callable[[Dict[str, float], int], Any]:
        package = _package("trackio")
        package.init(**init)
        return lambda values, step: package.log(values, step=step)

    return _on_first(make)


def mlflow(**run: Any) -> Callback:
    """Logs to MLflow; options are those of `mlflow.start_run`."""

    def make() -> Callable[[Dict[str, float], int], Any]:
        package = _package("mlflow")
        package.start_run(**run)
        return lambda values, step: package.log_metrics(values, step=step)

    return _on_first(make)


def tensorboard(folder: str) -> Callback:
    """Logs to a folder that TensorBoard reads."""

    def make() -> Callable[[Dict[str, float], int], Any]:
        writer = _package("torch.utils.tensorboard").SummaryWriter(folder)

        def log(values: Dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return log

    return _on_first(make)
