"""The part that users see: a program, modules, and steps."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from .. import Error, Program, Timeline
from . import _batches, _checks, _optimizer_state, _state, _support
from ._buckets import Groups, make_buckets
from ._executor import Batch, Executor
from ._messages import Messages
from ._reductions import MakeOptimizer, MakeScheduler
from ._stage import Loss, Stage
from ._state import StepReport
from ._support import Tied
from ._versions import Versions

_STEP, _EVALUATE, _PREDICT = range(3)
"""The calls of which all ranks make the same."""


class Runtime:
    """Trains stages by a proven program, on the ranks of a process group.

    The group has W times as many ranks as the program has workers: rank `g * D + w` is worker `w` of pipeline group
    `g`. Every rank makes a runtime with the same arguments.

    - `stages(s)` makes the module of stage `s`. It is called with what the one before returned: a tensor, the values of a
      tuple, or those of a dict by their names. In them are tensors, of any number and shape, numbers, strings and None. A
      gradient comes back for what needs one. Replicas get the weights and buffers of the first. Stages on one rank may have
      no parameter in common but those in `tied`. Modules are not wrapped in DistributedDataParallel or FSDP: gradients are
      summed here.
    - `loss_fn(output, target)` is the mean over the samples it is given (see `normalize`).
    - `optimizer(parameters)` and `scheduler(optimizer)` are asked for each bucket of the program; the scheduler takes a
      step with each update. None leaves the gradients of a step to the caller.
      A parameter that no micro-batch gives a gradient has none, so that an optimizer leaves it alone.
    - `groups(name)` are options of the optimizer for a parameter, such as `{"weight_decay": 0.0}`: `optimizer` is then given groups.
    - `clip` is the largest norm of all gradients together.
    - `autocast` is the type of mixed precision, and `loss_scale` a factor for float16, or `"dynamic"`.
    - `tied` names, for each set of stages that was tied in `lower`, the parameter of each stage: `[{0: "wte.weight",
      3: "head.weight"}]`.
    - `device` is that of the stages [default: CUDA if the group's backend is NCCL, else the CPU].
    - `in_one_order` sends without tags, in the one order of the program; this is what NCCL needs, and its default.
    - `broadcast_buffers` gives replicas the buffers of the first after each step, as DistributedDataParallel does before each
      forward: the statistics of a batch norm are those of the micro-batches that the first replica computes.

    - `normalize` says what the loss of a step is: `"mean"` of what `loss_fn` returns for its micro-batches; with `"tokens"`
      `loss_fn` returns sums, which are divided by the targets of the whole batch that are not -100 (`ignore_index`); a
      function counts something else in a target.
    - `whole_names` saves tensors by the names that modules give them, which are then those of the whole model, so that
      another number of stages can load them.
    - `dynamic_shapes` is for activations whose shapes depend on more than the shapes of the batch.

    A mistake in these arguments and modules raises on all ranks, and so does a batch that a rank refuses and an error within
    a stage or a loss. Nothing waits for a rank that failed, and no weight is updated by such a step where the program has its
    barrier.
    """

    def __init__(
        self,
        program: Program,
        stages: Callable[[int], torch.nn.Module],
        loss_fn: Loss,
        optimizer: MakeOptimizer | None,
        *,
        scheduler: MakeScheduler | None = None,
        groups: Groups | None = None,
        clip: float | None = None,
        autocast: torch.dtype | None = None,
        loss_scale: float | str = 1.0,
        tied: Tied = (),
        normalize: Any = "mean",
        device: torch.device | str | None = None,
        group: Any = None,
        in_one_order: bool | None = None,
        broadcast_buffers: bool = True,
        whole_names: bool = False,
        dynamic_shapes: bool = False,
    ) -> None:
        self.program, self._file, self._clip = program, program.to_dict(), clip
        self._group = group if group is not None else dist.group.WORLD
        _checks.check_group(self._group)
        options = {"clip": clip, "autocast": autocast, "loss_scale": loss_scale, "tied": [dict(names) for names in tied]}
        options |= {"in_one_order": in_one_order, "broadcast_buffers": broadcast_buffers, "scheduler": scheduler is not None, "groups": groups is not None}
        options |= {"normalize": normalize if isinstance(normalize, str) else "a function", "optimizer": optimizer is not None}
        options |= {"whole_names": whole_names, "dynamic_shapes": dynamic_shapes}
        _checks.check_alike(program, options, self._group)
        _support.check_numbers(clip, autocast, loss_scale)
        self._loss_scale, self.has_whole_names = _state.LossScale(loss_scale), whole_names
        self._broadcasts_buffers, self._guard = broadcast_buffers, _checks.Guard()
        rank, n_ranks, depth = dist.get_rank(self._group), dist.get_world_size(self._group), program.depth
        scaled_by = "clip" if clip is not None else "loss_scale" if loss_scale != 1.0 else None
        _support.check_program(program, self._file, n_ranks, tied, scaled_by)
        _support.check_counting(program, self._file, normalize)
        self.width, self.worker, self._first = n_ranks // depth, rank % depth, rank // depth * depth
        is_nccl = dist.get_backend(self._group) == "nccl"
        self.device = torch.device(device) if device is not None else torch.device("cuda" if is_nccl else "cpu")
        in_one_order = _support.is_in_one_order(in_one_order, _checks.backend_of(self._group, self.device))
        written = self._file["rows"][self.worker]["instructions"]
        row = program.one_order_rows()[self.worker] if in_one_order else written
        places = {json.dumps(instruction): index for index, instruction in enumerate(written)}
        self._places = [places[json.dumps(instruction)] for instruction in row]

        last = program.stages - 1
        made = _checks.make_stages(program.stages_of(self.worker), stages, self._prepared, tied, self._group)
        _support.tie(made, tied)
        self._trained = _checks.Trained(made)
        self._stages = {
            s: Stage(s, module, Versions(module, self._file["update"]), loss_fn if s == last else None, autocast, self.device)
            for s, module in made.items()
        }
        self._n_of_update = sum(bucket["update"] == 0 for bucket in self._file["buckets"])
        self._n_updates = len(self._file["buckets"]) // self._n_of_update
        self._buckets = make_buckets(
            self._file["buckets"], self.modules, tied, optimizer, scheduler, groups,
            depth=depth, n_stages=program.stages, has_whole_names=whole_names, group=self._group,
        )
        ranks = dist.get_process_group_ranks(self._group)[self._first : self._first + depth]
        self._messages = Messages(self._file, ranks, self._group, self.device, not in_one_order)
        self._executor = Executor(self._file, row, self._stages, self._buckets, self._messages)
        self._n_units = program.micro_batches * self._file["units_per_micro"]
        halved = program.micro_batches if self._file["units_per_micro"] == 2 else None
        self._cutter = _batches.Cutter(self._n_units, halved, self.device, normalize)
        self._shapes = _batches.Shapes(dynamic_shapes)
        self.last: StepReport | None = None

    def _prepared(self, module: torch.nn.Module, stage: int) -> torch.nn.Module:
        _checks.refuse_wrapped(module, stage, "give the module itself, Runtime sums gradients over replicas and groups")
        _checks.refuse_synchronized(module, stage)
        _checks.refuse_sharded(module, stage, "give whole tensors, or train with chimera_pipeline.torch.pytorch_runtime")
        if self._file["update"] != "flush":
            _checks.refuse_hooks(module, stage)
        return module.to(self.device)

    def step(self, x: Any = None, target: Any = None, **keywords: Any) -> float:
        """Trains one step on the batch of this pipeline group; returns the mean loss, on every rank.

        `x` are positional arguments of the first stage: a tensor, or a tuple of values. `keywords` go to the first stage and
        to all others whose `forward` takes them; give them on all ranks. `target` is what `loss_fn` gets beside the output.
        Each is a tensor whose first dimension is that of samples, or tensors in tuples and dicts, or a list of values, one
        for each micro-batch. Workers that hold the first stage need `x`, those with the last one `target`; others may leave
        them out. All workers of a group are given the same batch.
        An asynchronous program trains a window of steps, on a batch of as many times N micro-batches.

        Where a loss or gradient is not finite, no weight is updated (`last.is_skipped`). Without the barrier weights have
        changed before that is known, and every rank raises `chimera.Error`.
        """
        batch = self._begin(_STEP, x, target, keywords)
        for bucket in self._buckets:
            bucket.begin()
        with self._guard.step():
            is_good = self._executor.step(batch, self._weight * self._loss_scale.value, self._agree)
            if self._broadcasts_buffers:
                for bucket in self._buckets[: self._n_of_update]:
                    bucket.share_buffers()
        self._end(batch)
        assert self.last is not None, "every program agrees"
        if not is_good and not self._file["barrier"]:
            is_flushed = self._file["update"] == "flush"
            raise Error(
                f"a loss or gradient is not finite (loss {self.last.loss}, gradient norm of the last update "
                f"{self.last.grad_norm}), and without the barrier weights were updated by it: load weights and optimizers "
                "that were saved before this step; to leave such steps out, "
                + ("lower with barrier=True" if is_flushed else "choose a synchronous schedule")
            )
        return self.last.loss

    def evaluate(self, x: Any = None, target: Any = None, **keywords: Any) -> float:
        """The mean loss of a batch, on every rank. Modules are in evaluation mode meanwhile."""
        return self._evaluate(_EVALUATE, x, target, keywords)

    def predict(self, x: Any = None, **keywords: Any) -> Any:
        """What the last stage returns for a batch, on the first rank of each pipeline; None on others.

        Modules are in evaluation mode meanwhile.
        """
        self._evaluate(_PREDICT, x, None, keywords)
        holders = [self._first + worker for worker in self.program.replicas(self.program.stages - 1)]
        return _batches.gathered_outputs(self._executor.outputs, holders, self._first, self._group)

    def _evaluate(self, call: int, x: Any, target: Any, keywords: Mapping[str, Any]) -> float:
        batch = self._begin(call, x, target, keywords)
        with torch.no_grad(), _checks.evaluating(self.modules.values()), self._guard.step():
            self._executor.evaluate(batch, call == _EVALUATE, call == _PREDICT)
            loss, *_ = self._sums([])
        self._end(batch)
        return loss

    def _begin(self, call: int, x: Any, target: Any, keywords: Mapping[str, Any]) -> Batch:
        """The batch of a step, if all ranks can begin it. Raises on all of them otherwise."""
        failure: Exception | None = None
        row = [call, 0]
        try:
            self._guard.check()
            if call == _STEP:
                _checks.Guard.check_gradients()
                self._trained.check("Runtime")
            self._check_needed(call, x, target, keywords)
            given = self._cutter.cut(x, target, keywords)
            row = [call, 1, *given.row(self._trained.digest())]
        except Exception as error:
            failure = error
        row += [0] * (_batches.row_length(self._n_units) - len(row))
        rows = _checks.gathered_numbers(row, self.device, self._group)
        if not all(is_ready for _, is_ready, *_ in rows):
            _checks.raise_together(failure, "begin its step", self._group)
        is_counted = self._cutter.is_counted and call != _PREDICT
        agreed = _batches.compare(rows, self.program.depth, self._first // self.program.depth, self._n_units, is_counted)
        n_losses = self._n_units * self.width
        self._loss_weight = 1 / agreed.n_counted if is_counted else 1 / n_losses
        self._weight = self._loss_weight * self._n_updates
        if self._shapes.begin(agreed.signatures):
            self._forget()
        has_first, has_last = 0 in self._stages, self.program.stages - 1 in self._stages
        handed = given.args if has_first else []
        targets = given.targets if has_last else []
        auxiliary = self._n_updates * self._loss_scale.value / n_losses
        return Batch(handed, given.keywords, targets, agreed.signatures, self._shapes.are_described, auxiliary)

    def _check_needed(self, call: int, x: Any, target: Any, keywords: Mapping[str, Any]) -> None:
        for value, name, stage in ((x, "x", 0), (target, "target", self.program.stages - 1)):
            is_there = value is not None or (name == "x" and keywords) or (name == "target" and call == _PREDICT)
            if stage in self._stages and not is_there:
                raise Error(f"worker {self.worker} holds stage {stage} and needs `{name}`: give it the batch of its group")
        if 0 in self._stages:
            self._stages[0].check_keywords({**keywords, **x} if isinstance(x, dict) else keywords)

    def _end(self, batch: Batch) -> None:
        """Raises on all ranks if one has failed."""
        if not self._has_failed:
            self._shapes.learn(batch.signatures)
            return
        self._forget()
        updated = "no weight was updated" if self._file["barrier"] else "weights were updated by it: load what was saved before"
        _checks.raise_together(self._executor.failure, f"carry out its part of the step, and {updated}", self._group)

    def _forget(self) -> None:
        self._shapes.forget()
        self._messages.forget()
        for stage in self._stages.values():
            stage.forget()

    def _sums(self, own: list[torch.Tensor]) -> list[float]:
        """The mean loss, and sums over all ranks of their own numbers. Learns whether a rank has failed meanwhile."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for of_unit in self._executor.losses:
            loss += of_unit.double().reshape(())
        failed = loss.new_full((), float(self._executor.failure is not None))
        row = torch.stack([failed, loss * self._loss_weight, *own])
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, row, group=self._group)
        n_failed, *sums = (sum(of_ranks, 0.0) for of_ranks in torch.stack(rows).T.tolist())
        self._has_failed = n_failed > 0
        return sums

    def _agree(self) -> bool:
        """Gathers loss and gradient norms of all ranks, each tensor counted once, and scales the gradients."""
        loss, auxiliary, *squares = self._sums([self._auxiliary(), *self._squares()])
        if self._has_failed:
            return not self._file["barrier"]
        scale = self._loss_scale.value
        norm = math.sqrt(squares[-1]) / scale
        # In a window the gradient of an early update may be in no later loss or gradient yet.
        is_finite = all(math.isfinite(number) for number in (loss, *squares))
        self.last = StepReport(loss, norm, not is_finite and self._file["barrier"], auxiliary)
        factor = 1.0 / scale
        if self._clip is not None:
            factor *= min(1.0, self._clip / (norm + 1e-6))
        if factor != 1.0 and is_finite:
            for bucket in self._buckets:
                bucket.scale(factor)
        self._loss_scale.after_step(is_finite)
        return is_finite

    def _auxiliary(self) -> torch.Tensor:
        """The part of this rank in the mean of auxiliary losses."""
        losses = [loss for stage in self._stages.values() for loss in stage.auxiliary.values]
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for loss in losses:
            total += loss.double().reshape(()) / (self._n_units * self.width)
        return total

    def _squares(self) -> list[torch.Tensor]:
        """Of each update, the sum of the squares of the gradients that this rank counts."""
        me = dist.get_rank()
        own = [torch.zeros((), dtype=torch.float64, device=self.device) for _ in range(self._n_updates)]
        for index, bucket in enumerate(self._buckets):
            if bucket.ranks[0] == me and not self._executor.is_failed:
                try:
                    own[index // self._n_of_update] += bucket.squared_norm(self.device)
                except Exception as error:
                    self._executor.fail(error)
        return own

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scales all gradients so that their norm is at most `max_norm`, and returns the norm that they had, on all ranks.

        For a runtime without an optimizer, between `step` and the optimizers of the caller. Each tensor counts once.
        Gradients whose norm is not finite stay as they are. Every rank must call it.
        """
        if not max_norm > 0:
            raise Error(f"`max_norm` is {max_norm!r}: choose a number above 0")
        self._executor.losses.clear()
        _, *squares = self._sums(self._squares())
        norm = math.sqrt(squares[-1])
        factor = min(1.0, max_norm / (norm + 1e-6))
        if math.isfinite(norm) and factor < 1.0:
            for bucket in self._buckets:
                bucket.scale(factor)
        return norm

    @property
    def modules(self) -> dict[int, torch.nn.Module]:
        """The modules of this worker, by stage."""
        return {index: stage.module for index, stage in self._stages.items()}

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of this worker, by bucket."""
        of_one = self._buckets[: self._n_of_update]
        return [bucket.optimizer for bucket in of_one if bucket.optimizer is not None]

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers of this worker, by bucket, where `scheduler` makes some."""
        return [bucket.scheduler for bucket in self._buckets[: self._n_of_update] if bucket.scheduler is not None]

    def state_dict(self) -> dict[str, Any]:
        """All tensors of the model on rank 0, each once, as `STAGE.NAME`; elsewhere nothing. Every rank must call it.

        With `whole_names` they are there as `NAME`. A dynamic loss scale is there too, as `loss_scale`, with the good steps
        since it changed.
        """
        is_mine = {s: self._first == 0 and self.program.replicas(s)[0] == self.worker for s in self._stages}
        own = {s: module for s, module in self.modules.items() if is_mine[s]}
        state = _state.gathered(own, self.has_whole_names, self._group)
        return {**state, **self._loss_scale.state()} if dist.get_rank(self._group) == 0 else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the stages of this worker from what `state_dict` returned on rank 0: give it to every rank.

        A dynamic loss scale goes on from the one that was saved, and begins anew where there is none. Where a rank cannot
        load its stages, all raise, and none has loaded anything.
        """
        failure: Exception | None = None
        try:
            _state.check_state(state)
            scale = self._loss_scale.saved(state)
            parts = _state.parts(state, self.modules, self.program.stages, self.has_whole_names)
        except Exception as error:
            failure = error
        _checks.raise_together(failure, "load its stages", self._group)
        for index, part in parts.items():
            self._stages[index].module.load_state_dict(part)
        self._loss_scale.load(scale)

    def optimizer_state_dict(self, optimizers: Sequence[Any] | None = None) -> dict[str, Any]:
        """State and options of the optimizers of all ranks on rank 0, by names of parameters; elsewhere nothing.

        `optimizers` are those of this rank's parameters, if the caller made them. With `whole_names` another number of stages
        and workers can load them. Every rank must call it.
        """
        own = self.optimizers if optimizers is None else optimizers
        return _optimizer_state.gathered(own, self._names(), self._group)

    def load_optimizer_state_dict(self, state: Mapping[str, Any], optimizers: Sequence[Any] | None = None) -> None:
        """Loads what `optimizer_state_dict` returned on rank 0: give it to every rank."""
        own = self.optimizers if optimizers is None else optimizers
        _optimizer_state.load(own, self._names(), state, self._group)

    def _names(self) -> dict[int, list[str]]:
        names: dict[int, list[str]] = {}
        for stage, module in self.modules.items():
            for name, parameter in module.named_parameters(remove_duplicate=False):
                names.setdefault(id(parameter), []).append(_state.prefix(stage, self.has_whole_names) + name)
        return names

    def timeline(self) -> Timeline:
        """The last step as the hosts of the first pipeline group measured it. Every rank must call it."""
        rows: list[Any] = [None] * dist.get_world_size(self._group)
        times = [(self._places[index], start, end) for index, start, end in self._executor.times]
        dist.all_gather_object(rows, times, group=self._group)
        events = [(w, index, start, end) for w, row in enumerate(rows[: self.program.depth]) for index, start, end in row]
        return self.program.timeline(events)


