"""Programs on PyTorch's own pipelining runtime, for what works beside it alone, such as FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .. import Error, Program
from . import _checks
from ._replicas import Replicas

if TYPE_CHECKING:
    from ._replicated import Inputs, ReplicatedSchedule

Loss = Callable[..., torch.Tensor]

_INSTEAD = "or train with chimera_pipeline.torch.Runtime"


class PyTorchRuntime:
    """Carries out a program by PyTorch's own pipelining runtime, bidirectional programs whole, with the stages of one worker.

    It is for what PyTorch offers beside its runtime, FSDP above all; `Runtime` can do more else. It needs torch 2.15.

    - `group` is the process group of one pipeline, of as many ranks as the program has workers [default: all ranks].
      Every rank calls this with the same program.
    - `stages(s)` makes the module of stage `s`, from one tensor or several to one or several. It may shard its parameters
      by `fully_shard` over the ranks of the same worker in other pipelines. It is called once for each stage of this
      worker, whose stages have no parameter in common. Replicas get the weights and buffers of the first.
    - `loss_fn(output, target)` is the mean over the samples it is given.
    - `device` is that of the stages [default: CUDA if the group's backend is NCCL, else the CPU].
    - `broadcast_buffers` gives replicas within the pipeline the buffers of the first after each step.
    - `scale_grads=False` trains on the sum of the losses of micro-batches instead of their mean.

    Stage `s` of pipe `p` is PyTorch's virtual stage `p * program.stages + s`. `modules` are those of this worker, by stage;
    optimizers are the caller's. `schedule` is a schedule of PyTorch, a `_PipelineScheduleRuntime`, for code that expects one:
    its `step` and `eval` have PyTorch's own signature, add gradients to those that are there, and sum over replicas.

    Raises `chimera.Error` for what PyTorch's runtime cannot do: parts of micro-batches (halving), ops on several at
    once, recomputation, updates while micro-batches are on their way, tied parameters.
    """

    def __init__(
        self,
        program: Program,
        stages: Callable[[int], torch.nn.Module],
        loss_fn: Loss,
        *,
        device: torch.device | str | None = None,
        group: Any = None,
        broadcast_buffers: bool = True,
        scale_grads: bool = True,
    ) -> None:
        self.program, self._group = program, group if group is not None else dist.group.WORLD
        self._scales_grads = scale_grads
        _checks.check_group(self._group)
        options = {"broadcast_buffers": broadcast_buffers, "scale_grads": scale_grads}
        _checks.check_alike(program, options, self._group)
        self.worker = dist.get_rank(self._group)
        file = program.to_dict()
        rows = _rows(program, file)
        _check_size(program, self._group)
        is_nccl = dist.get_backend(self._group) == "nccl"
        self.device = torch.device(device) if device is not None else torch.device("cuda" if is_nccl else "cpu")
        self.modules = _checks.make_stages(program.stages_of(self.worker), stages, self._on_device, (), self._group)
        self._trained = _checks.Trained(self.modules)
        self._replicas = Replicas(file["buckets"], self.modules, self.device, self._group, shares_buffers=broadcast_buffers)
        if not self._replicas.is_meta:
            self._replicas.prepare()
        self.schedule = self._make_schedule(file["placement"], rows, loss_fn)

    def _on_device(self, module: torch.nn.Module, stage: int) -> torch.nn.Module:
        _checks.refuse_wrapped(module, stage, f"shard it with fully_shard, {_INSTEAD}, which trains groups side by side")
        _checks.refuse_synchronized(module, stage)
        stays = any(isinstance(parameter, DTensor) or parameter.is_meta for parameter in module.parameters())
        return module if stays else module.to(self.device)

    def _make_schedule(self, placement: list[list[int]], rows: list[str], loss_fn: Loss) -> ReplicatedSchedule:
        pytorch = _pytorch_classes()
        n_stages, n_pipes = self.program.stages, len(placement)
        places = [(stage, worker) for pipe in placement for stage, worker in enumerate(pipe)]
        own = [
            pytorch.VirtualStage(self.modules[stage], index, n_stages, n_pipes, self.device, self._group)
            for index, (stage, worker) in enumerate(places)
            if worker == self.worker
        ]
        ranks = {index: worker for index, (_, worker) in enumerate(places)}
        schedule: ReplicatedSchedule = pytorch.ReplicatedSchedule(
            own,
            rows,
            ranks,
            self.program.micro_batches,
            lambda *given, **options: _checks.one_loss(loss_fn(*given, **options)),
            scale_grads=self._scales_grads,
            replicas=self._replicas,
            group=self._group,
        )
        return schedule

    def step(self, x: Any = None, target: Any = None, **kwargs: Any) -> float:
        """Computes the gradients of a batch, and returns the mean loss of this pipeline, on all its ranks.

        `x` is a tensor or a tuple of tensors, which the first stage takes; `target` is a tensor, or tuples, lists and
        dicts of tensors. Their first dimension is that of samples, which divide into the program's micro-batches. Workers
        that hold the first stage need `x`, those with the last one `target`; others may leave them out. Every stage gets
        the other keywords, so that all ranks need them: tensors are cut into micro-batches, and the rest is given whole.

        Gradients of the last step are dropped. Those of this one are summed over the replicas of a stage in the order of
        ranks, so that replicas stay equal to the bit; FSDP has summed them over other pipelines before. Without
        `scale_grads` the loss is the sum over micro-batches.
        """
        self._trained.check("chimera_pipeline.torch.pytorch_runtime")
        self._replicas.drop_gradients()
        self.schedule.run(lambda: self._inputs(x, target, kwargs))
        return self._loss()

    def evaluate(self, x: Any = None, target: Any = None, **kwargs: Any) -> float:
        """The mean loss of a batch, on all ranks of this pipeline. Modules are in evaluation mode meanwhile."""
        with torch.no_grad(), _checks.evaluating(self.modules.values()):
            self.schedule.evaluate_inputs(lambda: self._inputs(x, target, kwargs))
        return self._loss()

    def grad_norm(self) -> float:
        """The norm of all gradients of the model together, each tensor counted once, on all ranks.

        Replicas of a stage count as one, and the parts of a tensor that FSDP shards are added. Every rank must call it, those of
        other pipelines too where FSDP shards over them.
        """
        return self._replicas.grad_norm()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scales all gradients so that their norm is at most `max_norm`, and returns the norm that they had, on all ranks.

        `torch.nn.utils.clip_grad_norm_`, summed over ranks, would count each replica of a stage. Gradients whose norm is not
        finite stay as they are. Every rank must call it, as `grad_norm`.
        """
        return self._replicas.clip(max_norm)

    def _inputs(self, x: Any, target: Any, kwargs: dict[str, Any]) -> Inputs:
        args = self._micro_batches(x, "x", 0)
        targets = self._micro_batches(target, "target", self.program.stages - 1)
        n = self.program.micro_batches
        named = {name: self._cut(value, name) for name, value in kwargs.items()}
        return _pytorch_classes().Inputs(  # type: ignore[no-any-return]
            args and [each if isinstance(each, tuple) else (each,) for each in args],
            [{name: parts[index] for name, parts in named.items()} for index in range(n)],
            targets,
        )

    def _micro_batches(self, batch: Any, name: str, stage: int) -> list[Any] | None:
        """The micro-batches of a batch, if this worker needs them. A batch is checked where it is not needed, too."""
        is_needed = stage in self.modules
        if batch is None:
            if is_needed:
                raise Error(f"worker {self.worker} holds stage {stage} and needs `{name}`: give it the batch of its pipeline")
            return None
        instead = "give a tensor, or a tuple of tensors" if name == "x" else "give a tensor, or a dict or tuple of tensors"
        is_one = isinstance(batch, torch.Tensor) or (name == "x" and not isinstance(batch, tuple))
        leaves = [batch] if is_one else tree_flatten(batch)[0]
        for leaf in leaves:
            _checks.tensor_batch(leaf, name, self.program.micro_batches, instead)
        return self._cut(batch, name) if is_needed else None

    def _cut(self, value: Any, name: str) -> list[Any]:
        """A value for each micro-batch: tensors in it are cut along their first dimension, and moved to the device."""
        n = self.program.micro_batches
        leaves, form = tree_flatten(value)
        parts = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                _checks.tensor_batch(leaf, name, n, "give a tensor")
                parts.append(leaf.to(self.device).split(len(leaf) // n))
            else:
                parts.append((leaf,) * n)
        return [tree_unflatten([part[index] for part in parts], form) for index in range(n)]

    def _loss(self) -> float:
        total = float(self.schedule.all_losses.sum())
        return total / self.program.micro_batches if self._scales_grads else total


pytorch_runtime = PyTorchRuntime


def _pytorch_classes() -> Any:
    """The module of the classes that extend PyTorch's private ones."""
    try:
        from . import _replicated as module
    except (AttributeError, ImportError) as error:
        raise Error(
            f"the pipelining of torch {torch.__version__} lacks what chimera_pipeline.torch.pytorch_runtime needs ({error}): install "
            f"torch 2.15, {_INSTEAD}"
        ) from error
    return module


def _check_size(program: Program, group: Any) -> None:
    n_ranks = dist.get_world_size(group)
    if n_ranks != program.depth:
        raise Error(
            f"the group has {n_ranks} ranks and the program {program.depth} workers: give the group of one pipeline, such as "
            '`mesh["pp"].get_group()`'
        )


def _rows(program: Program, file: dict[str, Any]) -> list[str]:
    """The program's rows in PyTorch's words, or what its runtime cannot do."""
    ops = [op for row in file["rows"] for i in row["instructions"] if i["do"] == "run" for op in i["ops"]]
    tied = [bucket["stages"] for bucket in file["buckets"] if len(bucket["stages"]) > 1]
    has = f"PyTorch's runtime cannot run {program.schedule}: it has"
    if file["update"] != "flush":
        raise Error(
            f"{has} one version of the weights, which this program updates while micro-batches are on their way; choose a "
            f"synchronous schedule, {_INSTEAD}"
        )
    if any(row["lane"] == "moves" for row in file["rows"]):
        raise Error(f"{has} no moves of activations; leave the pass out")
    if "slices" in file:
        raise Error(f"{has} whole sequences only, and here they are cut into {file['slices']} slices; choose another schedule")
    if file["units_per_micro"] > 1:
        raise Error(
            f"{has} whole micro-batches only, and here they are cut into {file['units_per_micro']} (halving); "
            f'schedule it with scaling="direct", {_INSTEAD}'
        )
    if any(len(op["units"]) > 1 for op in ops):
        raise Error(
            f"{has} ops on one micro-batch only, and here are some on several; make an op for each of them, {_INSTEAD}"
        )
    if any(op["kind"] == "R" for op in ops):
        raise Error(
            f"{has} no recomputation; leave the pass out and recompute within the stages by torch.utils.checkpoint, {_INSTEAD}"
        )
    if tied:
        raise Error(
            f"{has} no sums over several stages, which the tied stages {tied} need; lower without `tied` and sum these gradients "
            f"after each step, {_INSTEAD}"
        )
    try:
        return program.to_csv().splitlines()
    except Error as error:
        raise Error(f"{error}; train with chimera_pipeline.torch.Runtime") from error
