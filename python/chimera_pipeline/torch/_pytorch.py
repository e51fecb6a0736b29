"""Programs on PyTorch's own pipelining runtime, for what works beside it alone, such as FSDP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .. import Error, Program
from . import _checks
from ._reductions import Bucket, buffers_of

if TYPE_CHECKING:
    from ._virtual_stages import VirtualSchedule

Loss = Callable[[Any, torch.Tensor], torch.Tensor]

_INSTEAD = "or train with chimera_pipeline.torch.Runtime"


def pytorch_runtime(
    program: Program,
    stages: Callable[[int], torch.nn.Module],
    loss_fn: Loss,
    *,
    device: torch.device | str | None = None,
    group: Any = None,
    broadcast_buffers: bool = True,
) -> PyTorchRuntime:
    """Makes a runtime that carries out `program` by PyTorch's own pipelining runtime, bidirectional programs whole.

    It is for what PyTorch offers beside its runtime, FSDP above all; `Runtime` can do more else. It needs torch 2.15.

    - `group` is the process group of one pipeline, of as many ranks as the program has workers [default: all ranks].
      Every rank calls this with the same program.
    - `stages(s)` makes the module of stage `s`, from one tensor or several to one or several. It may shard its parameters
      by `fully_shard` over the ranks of the same worker in other pipelines. It is called once for each stage of this
      worker, whose stages have no parameter in common. Replicas get the weights and buffers of the first.
    - `loss_fn(output, target)` is the mean over the samples it is given.
    - `device` is that of the stages [default: CUDA if the group's backend is NCCL, else the CPU].
    - `broadcast_buffers` gives replicas within the pipeline the buffers of the first after each step.

    Raises `chimera.Error` for what PyTorch's runtime cannot do: parts of micro-batches (halving), ops on several at
    once, recomputation, updates while micro-batches are on their way, tied parameters.
    """
    return PyTorchRuntime(program, stages, loss_fn, device=device, group=group, broadcast_buffers=broadcast_buffers)


class PyTorchRuntime:
    """PyTorch's runtime with the stages of one worker. `pytorch_runtime` makes it.

    Stage `s` of pipe `p` is its virtual stage `p * program.stages + s`. `schedule` is PyTorch's object, a
    `_PipelineScheduleRuntime`. `modules` are those of this worker, by stage; optimizers are the caller's.
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
    ) -> None:
        self.program, self._group = program, group if group is not None else dist.group.WORLD
        self._broadcasts_buffers, self._guard = broadcast_buffers, _checks.Guard()
        _checks.check_group(self._group)
        _checks.check_alike(program, {"broadcast_buffers": broadcast_buffers}, self._group)
        self.worker = dist.get_rank(self._group)
        file = program.to_dict()
        rows = _rows(program, file)
        _check_size(program, self._group)
        is_nccl = dist.get_backend(self._group) == "nccl"
        self.device = torch.device(device) if device is not None else torch.device("cuda" if is_nccl else "cpu")
        self.modules = _checks.make_stages(program.stages_of(self.worker), stages, self._on_device, (), self._group)
        self._trained = _checks.Trained(self.modules)
        self._buckets = self._make_buckets(file["buckets"])
        self.schedule = self._make_schedule(file["placement"], rows, lambda *given: _checks.one_loss(loss_fn(*given)))
        self._shapes: list[int] | None = None

    def _on_device(self, module: torch.nn.Module, stage: int) -> torch.nn.Module:
        _checks.refuse_wrapped(module, stage, f"shard it with fully_shard, {_INSTEAD}, which trains groups side by side")
        _checks.refuse_synchronized(module, stage)
        is_sharded = any(isinstance(parameter, DTensor) for parameter in module.parameters())
        return module if is_sharded else module.to(self.device)

    def _make_buckets(self, written: list[dict[str, Any]]) -> list[Bucket]:
        """What is summed over replicas, stage by stage in the same order on all ranks."""
        all_ranks = dist.get_process_group_ranks(self._group)
        # Gathered gradients come in the order of ranks within their group.
        ranks_of = {bucket["stages"][0]: sorted({all_ranks[worker] for worker in bucket["members"]}) for bucket in written}
        groups = _checks.make_groups(ranks_of.values(), self._group)
        buckets = []
        for stage, ranks in ranks_of.items():
            if stage not in self.modules:
                continue
            module = self.modules[stage]
            parameters = list(module.parameters())
            trained = [p for p in parameters if p.requires_grad]
            made = Bucket(trained, ranks, groups.get(tuple(ranks)), buffers_of([module]))
            made.make_equal([p for p in parameters if not p.requires_grad])
            buckets.append(made)
        return buckets

    def _make_schedule(self, placement: list[list[int]], rows: list[str], loss_fn: Loss) -> VirtualSchedule:
        virtual_stages = _virtual_stages()
        n_stages, n_pipes = self.program.stages, len(placement)
        places = [(stage, worker) for pipe in placement for stage, worker in enumerate(pipe)]
        own = [
            virtual_stages.VirtualStage(self.modules[stage], index, n_stages, n_pipes, self.device, self._group)
            for index, (stage, worker) in enumerate(places)
            if worker == self.worker
        ]
        ranks = {index: worker for index, (_, worker) in enumerate(places)}
        schedule: VirtualSchedule = virtual_stages.VirtualSchedule(own, rows, ranks, self.program.micro_batches, loss_fn)
        return schedule

    def step(self, x: Any = None, target: torch.Tensor | None = None) -> float:
        """Computes the gradients of a batch, and returns the mean loss of this pipeline, on all its ranks.

        `x` is a tensor or a tuple of tensors, which the first stage takes; `target` is a tensor. Their first dimension
        is that of samples, which divide into the program's micro-batches. Workers that hold the first stage need `x`,
        those with the last one `target`; others may leave them out.

        Gradients of the last step are dropped. Those of this one are summed over the replicas of a stage in the order of
        ranks, so that replicas stay equal to the bit; FSDP has summed them over other pipelines before.
        """
        _checks.Guard.check_gradients()
        self._trained.check("chimera_pipeline.torch.pytorch_runtime")
        inputs = self._inputs(x, target)
        for bucket in self._buckets:
            bucket.begin()
        with self._guard.step():
            self._check_shapes(inputs)
            self.schedule.step(return_outputs=False, **inputs)
            for bucket in self._buckets:
                bucket.start()
            for bucket in self._buckets:
                bucket.wait()
            if self._broadcasts_buffers:
                for bucket in self._buckets:
                    bucket.share_buffers()
            return self._loss()

    def evaluate(self, x: Any = None, target: torch.Tensor | None = None) -> float:
        """The mean loss of a batch, on all ranks of this pipeline. Modules are in evaluation mode meanwhile."""
        inputs = self._inputs(x, target)
        with torch.no_grad(), _checks.evaluating(self.modules.values()), self._guard.step():
            self._check_shapes(inputs)
            self.schedule.evaluate(**inputs)
            return self._loss()

    def grad_norm(self) -> float:
        """The norm of all gradients of the model together, each tensor counted once, on all ranks.

        Replicas of a stage count as one, and the parts of a tensor that FSDP shards are added. Every rank must call it, those of
        other pipelines too where FSDP shards over them.
        """
        me, own = dist.get_rank(), torch.zeros(1, dtype=torch.float64, device=self.device)
        for bucket in self._buckets:
            square = bucket.whole_squared_norm(self.device)
            if bucket.ranks[0] == me:
                own += square
        return math.sqrt(self._sum(own))

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scales all gradients so that their norm is at most `max_norm`, and returns the norm that they had, on all ranks.

        `torch.nn.utils.clip_grad_norm_`, summed over ranks, would count each replica of a stage. Gradients whose norm is not
        finite stay as they are. Every rank must call it, as `grad_norm`.
        """
        if not max_norm > 0:
            raise Error(f"`max_norm` is {max_norm!r}: choose a number above 0")
        norm = self.grad_norm()
        factor = min(1.0, max_norm / (norm + 1e-6))
        if math.isfinite(norm) and factor < 1.0:
            for bucket in self._buckets:
                bucket.scale(factor)
        return norm

    def _check_shapes(self, inputs: dict[str, Any]) -> None:
        """Has PyTorch learn the shapes of messages anew if micro-batches have others than before, on any rank."""
        x, targets = inputs["arg_mbs"], inputs["target_mbs"]
        firsts = [*(x[0] if x else ()), *(targets[:1] if targets else ())]
        own = torch.tensor([hash(tuple((*tensor.shape, str(tensor.dtype)) for tensor in firsts))], device=self.device)
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, own, group=self._group)
        shapes = torch.cat(rows).tolist()
        if self._shapes not in (None, shapes):
            self.schedule.forget_shapes()
        self._shapes = shapes

    def _inputs(self, x: Any, target: Any) -> dict[str, Any]:
        inputs = self._micro_batches(x, "x", 0)
        targets = self._micro_batches(target, "target", self.program.stages - 1)
        return {"arg_mbs": inputs, "target_mbs": targets and [only for (only,) in targets]}

    def _micro_batches(self, batch: Any, name: str, stage: int) -> list[tuple[torch.Tensor, ...]] | None:
        """The micro-batches of a batch, if this worker needs them. A batch is checked where it is not needed, too."""
        is_needed = stage in self.modules
        if batch is None:
            if is_needed:
                raise Error(f"worker {self.worker} holds stage {stage} and needs `{name}`: give it the batch of its pipeline")
            return None
        given, n = batch if isinstance(batch, tuple) and name == "x" else (batch,), self.program.micro_batches
        instead = "give a tensor, or a tuple of tensors" if name == "x" else "give a tensor"
        tensors = [_checks.tensor_batch(tensor, name, n, instead) for tensor in given]
        if not is_needed:
            return None
        return list(zip(*(tensor.to(self.device).split(len(tensor) // n) for tensor in tensors)))

    def _loss(self) -> float:
        own = torch.zeros(1, dtype=torch.float64, device=self.device)
        for loss in self.schedule.micro_batch_losses.values():
            own += loss.double().reshape(1)
        return self._sum(own) / self.program.micro_batches

    def _sum(self, own: torch.Tensor) -> float:
        """The sum of one number of each rank, the same on all."""
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, own, group=self._group)
        return float(torch.stack(rows).sum())


def _virtual_stages() -> Any:
    try:
        from . import _virtual_stages as module
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
