"""The part that users see: a program, modules, and steps."""

from __future__ import annotations

import json
import math
import numbers
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .. import Error, Program, Timeline
from . import _checks
from ._executor import Executor
from ._messages import Messages
from ._reductions import MakeOptimizer, MakeScheduler, Updated, buffers_of
from ._stage import Loss, Stage
from ._versions import Versions

_GOOD_STEPS = 2000
"""Number of good steps in a row after which a dynamic loss scale is doubled."""

_INITIAL_SCALE = 65536.0
"""The dynamic loss scale at the beginning."""

_SCALE, _N_GOOD = "loss_scale", "loss_scale.good_steps"
"""Names in a state beside those of the stages, which begin with a number."""

_TAGGED = ("gloo", "mpi")
"""Backends whose messages have tags."""


class StepReport(NamedTuple):
    """What a step came to, on every rank."""

    loss: float
    """The mean loss over all pipeline groups."""
    grad_norm: float
    """The norm of all gradients together, each tensor counted once, before clipping; of a window that of its last update."""
    is_skipped: bool
    """Whether a loss or gradient was not finite, so that no weight was updated.

    False without the barrier, where weights have changed by then: `Runtime.step` raises.
    """


class Runtime:
    """Trains stages by a proven program, on the ranks of a process group.

    The group has W times as many ranks as the program has workers: rank `g * D + w` is worker `w` of pipeline group
    `g`. Every rank makes a runtime with the same arguments.

    - `stages(s)` makes the module of stage `s`, from one tensor to one tensor. Replicas get the weights and buffers of the
      first. Stages on one rank may have no parameter in common but those in `tied`. Modules are not wrapped in
      DistributedDataParallel or FSDP: gradients are summed here.
    - `loss_fn(output, target)` is the mean over the samples it is given. The loss of a step is the mean over its
      micro-batches: where they count differently, such as with `ignore_index`, divide a sum by a constant.
    - `optimizer(parameters)` and `scheduler(optimizer)` are asked for each bucket of the program; the scheduler takes a
      step with each update.
      A parameter that no micro-batch gives a gradient has none, so that an optimizer leaves it alone.
    - `clip` is the largest norm of all gradients together.
    - `autocast` is the type of mixed precision, and `loss_scale` a factor for float16, or `"dynamic"`.
    - `tied` names, for each set of stages that was tied in `lower`, the parameter of each stage: `[{0: "wte.weight",
      3: "head.weight"}]`.
    - `device` is that of the stages [default: CUDA if the group's backend is NCCL, else the CPU].
    - `in_one_order` sends without tags, in the one order of the program; this is what NCCL needs, and its default.
    - `broadcast_buffers` gives replicas the buffers of the first after each step, as DistributedDataParallel does before each
      forward: the statistics of a batch norm are those of the micro-batches that the first replica computes.

    A mistake in these arguments and modules raises on all ranks, and so does a batch that is wrong and given to all. A batch
    that one rank alone refuses leaves the others waiting for it: they go on when it is given another one, or fail when their
    group's time is over.
    """

    def __init__(
        self,
        program: Program,
        stages: Callable[[int], torch.nn.Module],
        loss_fn: Loss,
        optimizer: MakeOptimizer,
        *,
        scheduler: MakeScheduler | None = None,
        clip: float | None = None,
        autocast: torch.dtype | None = None,
        loss_scale: float | str = 1.0,
        tied: Sequence[Mapping[int, str]] = (),
        device: torch.device | str | None = None,
        group: Any = None,
        in_one_order: bool | None = None,
        broadcast_buffers: bool = True,
    ) -> None:
        self.program, self._file, self._clip = program, program.to_dict(), clip
        self._group = group if group is not None else dist.group.WORLD
        _checks.check_group(self._group)
        options = {"clip": clip, "autocast": autocast, "loss_scale": loss_scale, "tied": [dict(names) for names in tied]}
        options |= {"in_one_order": in_one_order, "broadcast_buffers": broadcast_buffers, "scheduler": scheduler is not None}
        _checks.check_alike(program, options, self._group)
        _check_numbers(clip, autocast, loss_scale)
        self._is_dynamic, self._n_good = loss_scale == "dynamic", 0
        self._loss_scale = _INITIAL_SCALE if self._is_dynamic else float(loss_scale)
        self._broadcasts_buffers, self._guard = broadcast_buffers, _checks.Guard()
        rank, n_ranks, depth = dist.get_rank(self._group), dist.get_world_size(self._group), program.depth
        self._check(n_ranks, tied)
        self.width, self.worker, self._first = n_ranks // depth, rank % depth, rank // depth * depth
        is_nccl = dist.get_backend(self._group) == "nccl"
        self.device = torch.device(device) if device is not None else torch.device("cuda" if is_nccl else "cpu")
        in_one_order = self._is_in_one_order(in_one_order)
        written = self._file["rows"][self.worker]["instructions"]
        row = program.one_order_rows()[self.worker] if in_one_order else written
        places = {json.dumps(instruction): index for index, instruction in enumerate(written)}
        self._places = [places[json.dumps(instruction)] for instruction in row]

        last = program.stages - 1
        made = _checks.make_stages(program.stages_of(self.worker), stages, self._prepared, tied, self._group)
        _tie(made, tied)
        self._trained = _checks.Trained(made)
        self._stages = {
            s: Stage(
                s,
                module,
                Versions(module, self._file["update"]),
                loss_fn if s == last else None,
                autocast,
                self.device,
            )
            for s, module in made.items()
        }
        self._buckets = self._make_buckets(tied, optimizer, scheduler)
        ranks = dist.get_process_group_ranks(self._group)[self._first : self._first + depth]
        messages = Messages(self._file, ranks, self._group, self.device, not in_one_order)
        self._executor = Executor(self._file, row, self._stages, self._buckets, messages)
        self._n_units = program.micro_batches * self._file["units_per_micro"]
        self._sizes: dict[str, int] = {}
        self._all_sizes: dict[str, set[int]] = {}
        self.last: StepReport | None = None

    def _check(self, n_ranks: int, tied: Sequence[Mapping[int, str]]) -> None:
        depth = self.program.depth
        if n_ranks % depth:
            raise Error(f"{n_ranks} ranks do not make groups of {depth} workers: start a multiple of {depth}")
        if "graph" in self._file:
            raise Error(
                "modules here are a chain, from one tensor to one tensor, and the program's stages are a graph: lower a timetable "
                "without `with_graph`"
            )
        if any(row["lane"] == "moves" for row in self._file["rows"]):
            raise Error("modules here keep their activations where they are, and the program moves some: leave bpipe and offload out")
        if "slices" in self._file:
            raise Error(
                f"modules here run whole sequences, and {self.program.schedule} cuts them into {self._file['slices']} slices: choose "
                "another schedule"
            )
        if not self._file["barrier"] and (self._clip is not None or self._loss_scale != 1.0):
            given = "clip" if self._clip is not None else "loss_scale"
            if self._file["update"] == "flush":
                raise Error(
                    "without the barrier weights change before gradients are scaled: lower with barrier=True, or leave "
                    f"`{given}` out"
                )
            raise Error(
                f"{self.program.schedule} updates weights while micro-batches are on their way, before the gradients of all "
                f"ranks are known, so that it cannot scale them: leave `{given}` out, or choose a synchronous schedule"
            )
        sets = [bucket["stages"] for bucket in self._tied_buckets()]
        if [sorted(names) for names in tied] != [sorted(set(stages)) for stages in sets]:
            raise Error(
                f"the program ties the stages {sets}, and `tied` names {[sorted(names) for names in tied]}: for each set in `lower` give "
                "the parameter of each of its stages, in the same order"
            )

    def _tied_buckets(self) -> list[dict[str, Any]]:
        """The buckets of tied stages, which come after one for each stage."""
        buckets: list[dict[str, Any]] = self._file["buckets"]
        return [bucket for bucket in buckets if bucket["update"] == 0][self.program.stages :]

    def _is_in_one_order(self, asked: bool | None) -> bool:
        backend = _checks.backend_of(self._group, self.device)
        if asked is None:
            return backend not in _TAGGED
        if not asked and backend == "nccl":
            raise Error("NCCL's messages have no tags, so that tensors would be taken for others: leave `in_one_order` out")
        return asked

    def _prepared(self, module: torch.nn.Module, stage: int) -> torch.nn.Module:
        _checks.refuse_wrapped(module, stage, "give the module itself, Runtime sums gradients over replicas and groups")
        _checks.refuse_synchronized(module, stage)
        _checks.refuse_sharded(module, stage, "give whole tensors, or train with chimera_pipeline.torch.pytorch_runtime")
        if self._file["update"] != "flush":
            _checks.refuse_hooks(module, stage)
        return module.to(self.device)

    def _make_buckets(
        self, tied: Sequence[Mapping[int, str]], optimizer: MakeOptimizer, scheduler: MakeScheduler | None
    ) -> list[Updated]:
        """The buckets of the program; those of other workers are empty."""
        all_ranks = dist.get_process_group_ranks(self._group)
        tied_here = {
            id(self._stages[stage].module.get_parameter(name))
            for names in tied
            for stage, name in names.items()
            if stage in self._stages
        }
        self._n_of_update = sum(bucket["update"] == 0 for bucket in self._file["buckets"])
        self._n_updates = len(self._file["buckets"]) // self._n_of_update
        depth, n_stages = self.program.depth, self.program.stages
        # Gathered gradients come in the order of ranks within their group.
        ranks_of = [
            sorted({all_ranks[g * depth + w] for g in range(self.width) for w in bucket["members"]})
            for bucket in self._file["buckets"]
        ]
        groups = _checks.make_groups(ranks_of, self._group)
        buckets: list[Updated] = []
        failure: Exception | None = None
        for index, (bucket, ranks) in enumerate(zip(self._file["buckets"], ranks_of)):
            here = [self._stages[s].module for s in dict.fromkeys(bucket["stages"]) if s in self._stages]
            is_tied = bucket["update"] == 0 and index >= n_stages
            if is_tied:
                # Of tied stages only this parameter is the same; the rest is in the bucket of each.
                names = tied[index - n_stages]
                own = [self._stages[s].module.get_parameter(names[s]) for s in names if s in self._stages][:1]
            else:
                own = [p for module in here for p in module.parameters() if id(p) not in tied_here]
            made = Updated([p for p in own if p.requires_grad], ranks, groups.get(tuple(ranks)), buffers_of([] if is_tied else here))
            buckets.append(made)
            if bucket["update"]:
                made.take_optimizer(buckets[index % self._n_of_update])
                continue
            made.make_equal([p for p in own if not p.requires_grad])
            try:
                made.make_optimizer(optimizer, scheduler)
            except Exception as error:
                failure = failure or error
        _checks.raise_together(failure, "make its optimizers", self._group)
        return buckets

    def step(self, x: Any = None, target: Any = None) -> float:
        """Trains one step on the batch of this pipeline group; returns the mean loss, on every rank.

        An asynchronous program trains a window of steps, on a batch of as many times N micro-batches.
        Workers that hold the first stage need `x`, those with the last one `target`; others may leave them out. Both are
        tensors whose first dimension is that of samples. All workers of a group are given the same batch, and all groups
        batches of one size.

        Where a loss or gradient is not finite, no weight is updated (`last.is_skipped`). Without the barrier weights have
        changed before that is known, and every rank raises `chimera.Error`.
        """
        _checks.Guard.check_gradients()
        self._trained.check("Runtime")
        weight = self._n_updates / (self._n_units * self.width)
        x, target = self._units(x, "x", 0), self._units(target, "target", self.program.stages - 1)
        for bucket in self._buckets:
            bucket.begin()
        with self._guard.step():
            is_good = self._executor.step(x, target, weight * self._loss_scale, self._agree)
            if self._broadcasts_buffers:
                for bucket in self._buckets[: self._n_of_update]:
                    bucket.share_buffers()
        self._check_sizes()
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

    def evaluate(self, x: Any = None, target: Any = None) -> float:
        """The mean loss of a batch, on every rank. Modules are in evaluation mode meanwhile."""
        x, target = self._units(x, "x", 0), self._units(target, "target", self.program.stages - 1)
        with torch.no_grad(), _checks.evaluating(self.modules.values()), self._guard.step():
            self._executor.evaluate(x, target)
            loss, *_ = self._sums([])
        self._check_sizes()
        return loss

    def _units(self, batch: Any, name: str, stage: int) -> list[torch.Tensor]:
        """The units of a batch, where this worker needs them. A batch is checked where it is not needed, too."""
        is_needed = stage in self._stages
        if batch is None and is_needed:
            raise Error(f"worker {self.worker} holds stage {stage} and needs `{name}`: give it the batch of its group")
        if batch is not None:
            instead = "give a tensor of numbers"
            if name == "x":
                instead += ", or train with chimera_pipeline.torch.pytorch_runtime, which takes several"
            halved = self.program.micro_batches if self._file["units_per_micro"] == 2 else None
            _checks.tensor_batch(batch, name, self._n_units, instead, halved)
        self._sizes[name] = len(batch) if is_needed else 0
        if not is_needed:
            return []
        # Each unit counts by itself whether it is changed in place: autograd would take a change of one for one of all.
        return [unit.data for unit in batch.detach().to(self.device).split(len(batch) // self._n_units)]

    def _sums(self, own: list[torch.Tensor]) -> list[float]:
        """The mean loss, and sums over all ranks of their own numbers. Learns the sizes of all batches meanwhile."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for of_unit in self._executor.losses:
            loss += of_unit.double().reshape(())
        sizes = torch.tensor(list(self._sizes.values()), dtype=torch.float64, device=self.device)
        row = torch.cat([sizes, torch.stack([loss / (self._n_units * self.width), *own])])
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, row, group=self._group)
        columns = torch.stack(rows).T.tolist()
        for name, of_ranks in zip(self._sizes, columns):
            self._all_sizes[name] = {int(size) for size in of_ranks if size}
        return [sum(of_ranks, 0.0) for of_ranks in columns[len(self._sizes) :]]

    def _has_one_size(self) -> bool:
        return all(len(sizes) == 1 for sizes in self._all_sizes.values())

    def _check_sizes(self) -> None:
        for name, sizes in self._all_sizes.items():
            if len(sizes) > 1:
                updated = "no weight was updated" if self._file["barrier"] else "weights were updated by them"
                raise Error(
                    f"ranks were given batches of {', '.join(map(str, sorted(sizes)))} samples in `{name}`, and {updated}: give "
                    "all workers of a group the same batch, and all groups as many samples"
                )

    def _agree(self) -> bool:
        """Gathers loss and gradient norms of all ranks, each tensor counted once, and scales the gradients."""
        me = dist.get_rank()
        own = [torch.zeros((), dtype=torch.float64, device=self.device) for _ in range(self._n_updates)]
        for index, bucket in enumerate(self._buckets):
            if bucket.ranks[0] == me:
                own[index // self._n_of_update] += bucket.squared_norm(self.device)
        loss, *squares = self._sums(own)
        norm = math.sqrt(squares[-1]) / self._loss_scale
        # In a window the gradient of an early update may be in no later loss or gradient yet.
        is_finite = all(math.isfinite(number) for number in (loss, *squares))
        self.last = StepReport(loss, norm, not is_finite and self._file["barrier"])
        if not self._has_one_size():
            return not self._file["barrier"]
        factor = 1.0 / self._loss_scale
        if self._clip is not None:
            factor *= min(1.0, self._clip / (norm + 1e-6))
        if factor != 1.0 and is_finite:
            for bucket in self._buckets:
                bucket.scale(factor)
        self._rescale(is_finite)
        return is_finite

    def _rescale(self, is_finite: bool) -> None:
        """Halves a dynamic loss scale after a bad step, and doubles it after many good ones."""
        if self._is_dynamic:
            self._n_good = self._n_good + 1 if is_finite else 0
            if not is_finite:
                self._loss_scale = max(1.0, self._loss_scale / 2)
            elif self._n_good % _GOOD_STEPS == 0:
                self._loss_scale *= 2

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

        A dynamic loss scale is there too, as `loss_scale`, with the good steps since it changed.
        """
        own: dict[str, Any] = {}
        if self._first == 0:
            for index, stage in self._stages.items():
                if self.program.replicas(index)[0] == self.worker:
                    for name, value in stage.module.state_dict().items():
                        own[f"{index}.{name}"] = value.cpu() if isinstance(value, torch.Tensor) else value
        root = dist.get_process_group_ranks(self._group)[0]
        parts: list[Any] | None = [None] * dist.get_world_size(self._group) if dist.get_rank() == root else None
        dist.gather_object(own, parts, dst=root, group=self._group)
        state = {name: tensor for part in parts or [] for name, tensor in part.items()}
        if parts is not None and self._is_dynamic:
            state[_SCALE] = torch.tensor(self._loss_scale, dtype=torch.float64)
            state[_N_GOOD] = torch.tensor(self._n_good)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the stages of this worker from what `state_dict` returned on rank 0: give it to every rank.

        A dynamic loss scale goes on from the one that was saved, and begins anew where there is none. Where a rank cannot
        load its stages, all raise, and none has loaded anything.
        """
        failure: Exception | None = None
        try:
            scale, parts = self._scale_and_parts(state)
        except Exception as error:
            failure = error
        _checks.raise_together(failure, "load its stages", self._group)
        for index, part in parts.items():
            self._stages[index].module.load_state_dict(part)
        self._loss_scale, self._n_good = scale

    def _scale_and_parts(self, state: Mapping[str, Any]) -> tuple[tuple[float, int], dict[int, dict[str, Any]]]:
        """The loss scale in a state, and the part of each stage of this worker, which can be loaded."""
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise Error(f"the state is {state!r:.60}: give every rank what `state_dict` returned on rank 0, tensors by their names")
        scale = self._saved_scale(state) if self._is_dynamic else (self._loss_scale, self._n_good)
        state = {name: tensor for name, tensor in state.items() if name not in (_SCALE, _N_GOOD)}
        strange = sorted({name.partition(".")[0] for name in state} - {str(stage) for stage in range(self.program.stages)})
        if strange or not state:
            found = f"tensors of stage {', '.join(strange)}" if strange else "no tensors"
            raise Error(
                f"the state has {found}, and the program stages 0 to {self.program.stages - 1}: give every rank what "
                "`state_dict` returned on rank 0 under a program of as many stages"
            )
        parts = {s: {n[len(f"{s}.") :]: t for n, t in state.items() if n.startswith(f"{s}.")} for s in self._stages}
        for index, part in parts.items():
            _check_part(index, part, self._stages[index].module.state_dict())
        return scale, parts

    @staticmethod
    def _saved_scale(state: Mapping[str, Any]) -> tuple[float, int]:
        """A dynamic loss scale in a state, and its good steps; states of earlier versions have none."""
        if _SCALE not in state:
            return _INITIAL_SCALE, 0
        try:
            scale, n_good = float(state[_SCALE]), int(state.get(_N_GOOD, 0))
        except (TypeError, ValueError, OverflowError, RuntimeError):
            scale, n_good = math.nan, 0
        if not (1 <= scale < math.inf and n_good >= 0):
            raise Error(
                f"the state has the loss scale {state[_SCALE]!r} after {state.get(_N_GOOD, 0)!r} good steps, which is none: leave both "
                f"`{_SCALE}` and `{_N_GOOD}` out of it to begin with {_INITIAL_SCALE:g}"
            )
        return scale, n_good

    def timeline(self) -> Timeline:
        """The last step as the hosts of the first pipeline group measured it. Every rank must call it."""
        rows: list[Any] = [None] * dist.get_world_size(self._group)
        times = [(self._places[index], start, end) for index, start, end in self._executor.times]
        dist.all_gather_object(rows, times, group=self._group)
        events = [(w, index, start, end) for w, row in enumerate(rows[: self.program.depth]) for index, start, end in row]
        return self.program.timeline(events)


def _check_numbers(clip: Any, autocast: Any, loss_scale: Any) -> None:
    if clip is not None and not (_is_number(clip) and clip > 0):
        raise Error(f"`clip` is {clip!r}: choose a number above 0, or None")
    if loss_scale != "dynamic" and not (_is_number(loss_scale) and 0 < loss_scale < math.inf):
        raise Error(f'`loss_scale` is {loss_scale!r}: choose a number above 0, or "dynamic"')
    if autocast is not None and not (isinstance(autocast, torch.dtype) and autocast.is_floating_point):
        raise Error(f"`autocast` is {autocast!r}: choose torch.bfloat16 or torch.float16, or None")


def _check_part(stage: int, part: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises unless a stage can take its part of a state whole: it would be loaded in half."""
    cure = "give what `state_dict` returned for the same modules"
    for here, there, what in ((wanted, part, "lacks"), (part, wanted, "has, beside those of the module,")):
        names = [f"`{name}`" for name in here if name not in there]
        if names:
            raise Error(f"the state of stage {stage} {what} {', '.join(names)}: {cure}")
    for name, tensor in wanted.items():
        shapes = [list(t.shape) if isinstance(t, torch.Tensor) else None for t in (part[name], tensor)]
        if shapes[0] != shapes[1]:
            raise Error(f"the state has a `{name}` of stage {stage} of shape {shapes[0]}, and the module one of {shapes[1]}: {cure}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _tie(made: dict[int, torch.nn.Module], tied: Sequence[Mapping[int, str]]) -> None:
    """Makes one parameter of those that tied stages of this worker have, under all names that it has in each."""
    for names in tied:
        here = [made[stage].get_parameter(names[stage]) for stage in sorted(names) if stage in made]
        for module in made.values():
            for part in module.modules():
                for name, parameter in part._parameters.items():
                    if any(parameter is other for other in here[1:]):
                        part._parameters[name] = here[0]
