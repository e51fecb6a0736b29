"""The part that users see: a program, modules, and steps."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .. import Error, Program, Timeline
from ._executor import Executor
from ._messages import Messages
from ._reductions import Updated
from ._stage import Loss, Stage
from ._versions import Versions

_GOOD_STEPS = 2000
"""After so many good steps a dynamic loss scale is doubled."""


def check_alike(program: Program, group: Any) -> None:
    """Raises unless all ranks of a group have the same program."""
    fingerprints: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(fingerprints, program.fingerprint, group=group)
    if len(set(fingerprints)) > 1:
        raise Error(f"ranks have different programs: {fingerprints}")


class StepReport(NamedTuple):
    """What a step came to, on every rank."""

    loss: float
    grad_norm: float
    """Over all tensors, each counted once, before clipping."""
    is_skipped: bool
    """Whether a loss or gradient was not finite, so that no weight was updated.

    Never without the barrier, where weights have changed by then: `Runtime.step` raises.
    """


class Runtime:
    """Trains stages by a proven program, on the ranks of a process group.

    The group has W times as many ranks as the program has workers: rank `g * D + w` is worker `w` of pipeline group
    `g`. Every rank makes a runtime with the same arguments.

    - `stages(s)` makes the module of stage `s`, from one tensor to one tensor. Replicas get the weights of the first.
    - `loss_fn(output, target)` is the mean over the samples it is given.
    - `optimizer(parameters)` and `scheduler(optimizer)` are asked for each bucket of the program; the scheduler takes a
      step with each update.
    - `clip` is the largest norm of all gradients together.
    - `autocast` is the type of mixed precision, and `loss_scale` a factor for float16, or `"dynamic"`.
    - `tied` names, for each set of stages that was tied in `lower`, the parameter of each stage: `[{0: "wte.weight",
      3: "head.weight"}]`.
    - `in_one_order` sends without tags, in the one order of the program; this is what NCCL needs, and its default.
    """

    def __init__(
        self,
        program: Program,
        stages: Callable[[int], torch.nn.Module],
        loss_fn: Loss,
        optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        clip: float | None = None,
        autocast: torch.dtype | None = None,
        loss_scale: float | str = 1.0,
        tied: Sequence[dict[int, str]] = (),
        device: torch.device | str | None = None,
        group: Any = None,
        in_one_order: bool | None = None,
    ) -> None:
        self.program, self._file, self._clip = program, program.to_dict(), clip
        self._group = group if group is not None else dist.group.WORLD
        self._is_dynamic, self._n_good = loss_scale == "dynamic", 0
        self._loss_scale = 65536.0 if self._is_dynamic else float(loss_scale)
        rank, n_ranks, depth = dist.get_rank(self._group), dist.get_world_size(self._group), program.depth
        self._check(n_ranks)
        self.width, self.worker, self._first = n_ranks // depth, rank % depth, rank // depth * depth
        is_nccl = dist.get_backend(self._group) == "nccl"
        self.device = torch.device(device) if device is not None else torch.device("cuda" if is_nccl else "cpu")
        in_one_order = is_nccl if in_one_order is None else in_one_order
        written = self._file["rows"][self.worker]["instructions"]
        row = program.one_order_rows()[self.worker] if in_one_order else written
        places = {json.dumps(instruction): index for index, instruction in enumerate(written)}
        self._places = [places[json.dumps(instruction)] for instruction in row]

        last = program.stages - 1
        made = {s: stages(s).to(self.device) for s in program.stages_of(self.worker)}
        self._tie(made, tied)
        self._stages = {
            s: Stage(
                module,
                Versions(module, self._file["update"]),
                s == 0,
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
        self.last: StepReport | None = None

    def _check(self, n_ranks: int) -> None:
        depth = self.program.depth
        if n_ranks % depth:
            raise Error(f"{n_ranks} ranks do not make groups of {depth} workers: start a multiple of {depth}")
        if "graph" in self._file:
            raise Error("modules here are a chain, from one tensor to one tensor, and the program's stages are a graph")
        if any(row["lane"] == "moves" for row in self._file["rows"]):
            raise Error("modules here keep their activations where they are, and the program moves some: leave bpipe and offload out")
        if "slices" in self._file:
            raise Error(
                f"modules here run whole sequences, and {self.program.schedule} cuts them into {self._file['slices']} slices: choose "
                "another schedule"
            )
        if not self._file["barrier"] and (self._clip is not None or self._loss_scale != 1.0):
            raise Error("without the barrier weights change before gradients are scaled: lower with barrier=True")
        check_alike(self.program, self._group)

    def _tie(self, made: dict[int, torch.nn.Module], tied: Sequence[dict[int, str]]) -> None:
        """Makes one parameter of those that tied stages of this worker have."""
        sets = [bucket["stages"] for bucket in self._file["buckets"] if len(bucket["stages"]) > 1]
        if [sorted(names) for names in tied] != [sorted(stages) for stages in sets]:
            raise Error(f"the program ties the stages {sets}, but `tied` names {[sorted(names) for names in tied]}")
        for names in tied:
            here = [(made[stage], names[stage]) for stage in sorted(names) if stage in made]
            for module, name in here[1:]:
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, here[0][0].get_parameter(here[0][1]))

    def _make_buckets(self, tied, optimizer, scheduler) -> list[Updated]:
        """The buckets of the program; those of other workers are empty. Groups are made in one order on all ranks."""
        groups: dict[tuple[int, ...], Any] = {}
        all_ranks = dist.get_process_group_ranks(self._group)
        is_tied = {(stage, name) for names in tied for stage, name in names.items()}
        of_tied = iter(tied)
        self._n_of_update = sum(bucket["update"] == 0 for bucket in self._file["buckets"])
        self._n_updates = len(self._file["buckets"]) // self._n_of_update
        buckets: list[Updated] = []
        for bucket in self._file["buckets"]:
            depth = self.program.depth
            ranks = [all_ranks[g * depth + w] for g in range(self.width) for w in bucket["members"]]
            key = tuple(sorted(ranks))
            if len(key) > 1 and key not in groups:
                groups[key] = dist.new_group(list(key))
            here = [s for s in bucket["stages"] if s in self._stages]
            if len(bucket["stages"]) > 1:
                names = next(of_tied)
                parameters = [self._stages[s].module.get_parameter(names[s]) for s in here[:1]]
                # Of tied stages only this parameter is the same; the rest is in the bucket of each.
                untrained = []
            else:
                named = [(s, n, p) for s in here for n, p in self._stages[s].module.named_parameters()]
                own = [p for s, name, p in named if (s, name) not in is_tied]
                parameters = [p for p in own if p.requires_grad]
                buffers = [b for s in here for b in self._stages[s].module.buffers()]
                untrained = [*(p for p in own if not p.requires_grad), *buffers]
            # Gathered gradients come in the order of ranks.
            first = buckets[len(buckets) % self._n_of_update] if bucket["update"] else None
            made = Updated(parameters, sorted(ranks), groups.get(key), optimizer, scheduler, first)
            if here and first is None:
                made.make_equal(untrained)
            buckets.append(made)
        return buckets

    def step(self, x: Any = None, target: Any = None) -> float:
        """Trains one step on the batch of this pipeline group; returns the mean loss, on every rank.

        An asynchronous program trains a window of steps, on a batch of as many times N micro-batches.
        Workers that hold the first stage need `x`, those with the last one `target`; others may leave them out.

        Where a loss or gradient is not finite, no weight is updated (`last.is_skipped`). Without the barrier weights have
        changed before that is known, and every rank raises `chimera.Error`.
        """
        weight = self._n_updates / (self._n_units * self.width)
        for bucket in self._buckets:
            bucket.begin()
        x, target = self._units(x, "x", 0), self._units(target, "target", self.program.stages - 1)
        is_finite = self._executor.step(x, target, weight * self._loss_scale, self._agree)
        assert self.last is not None, "every program agrees"
        if not is_finite and not self._file["barrier"]:
            is_flushed = self._file["update"] == "flush"
            raise Error(
                f"a loss or gradient is not finite (loss {self.last.loss}, gradient norm of the last update "
                f"{self.last.grad_norm}), and without the barrier weights were updated by it: load weights and optimizers "
                "that were saved before this step; to leave such steps out, "
                + ("lower with barrier=True" if is_flushed else "choose a synchronous schedule")
            )
        return self.last.loss

    @torch.no_grad()
    def evaluate(self, x: Any = None, target: Any = None) -> float:
        """The mean loss of a batch, on every rank. Modules are in evaluation mode meanwhile."""
        modes = [(stage.module, stage.module.training) for stage in self._stages.values()]
        for module, _ in modes:
            module.eval()
        try:
            self._executor.evaluate(self._units(x, "x", 0), self._units(target, "target", self.program.stages - 1))
        finally:
            for module, mode in modes:
                module.train(mode)
        return self._gathered(self._own_loss()).sum(0)[0].item()

    def _units(self, batch: Any, name: str, stage: int) -> list[Any]:
        """The units of a batch, where this worker needs them."""
        if stage not in self._stages:
            return []
        if batch is None:
            raise Error(f"worker {self.worker} holds stage {stage} and needs `{name}`")
        n = self._n_units
        if len(batch) == 0 or len(batch) % n:
            raise Error(f"`{name}` has {len(batch)} samples, which do not divide into {n} equal parts")
        return list(batch.to(self.device).split(len(batch) // n))

    def _own_loss(self) -> torch.Tensor:
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        for loss in self._executor.losses:
            total += loss.double()
        return total / (self._n_units * self.width)

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks."""
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, own, group=self._group)
        return torch.stack(rows)

    def _agree(self) -> bool:
        """Gathers loss and gradient norms of all ranks, each tensor counted once, and scales the gradients."""
        me = dist.get_rank()
        own = torch.zeros(self._n_updates, dtype=torch.float64, device=self.device)
        for index, bucket in enumerate(self._buckets):
            if bucket.ranks[0] == me:
                own[index // self._n_of_update] += bucket.squared_norm(self.device)
        loss, *squares = self._gathered(torch.cat([self._own_loss(), own])).sum(0).tolist()
        norm = math.sqrt(squares[-1]) / self._loss_scale
        # In a window the gradient of an early update may be in no later loss or gradient yet.
        is_finite = all(math.isfinite(number) for number in (loss, *squares))
        self.last = StepReport(loss, norm, not is_finite and self._file["barrier"])
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

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All tensors of the model on rank 0, each once, as `STAGE.NAME`; elsewhere nothing. Every rank must call it."""
        own = {}
        if self._first == 0:
            for index, stage in self._stages.items():
                if self.program.replicas(index)[0] == self.worker:
                    own.update({f"{index}.{name}": t.cpu() for name, t in stage.module.state_dict().items()})
        root = dist.get_process_group_ranks(self._group)[0]
        parts: list[Any] | None = [None] * dist.get_world_size(self._group) if dist.get_rank() == root else None
        dist.gather_object(own, parts, dst=root, group=self._group)
        return {name: tensor for part in parts or [] for name, tensor in part.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Loads the stages of this worker from what `state_dict` returned on rank 0."""
        for index, stage in self._stages.items():
            prefix = f"{index}."
            stage.module.load_state_dict({n[len(prefix) :]: t for n, t in state.items() if n.startswith(prefix)})

    def timeline(self) -> Timeline:
        """The last step as the hosts of the first pipeline group measured it. Every rank must call it."""
        rows: list[Any] = [None] * dist.get_world_size(self._group)
        times = [(self._places[index], start, end) for index, start, end in self._executor.times]
        dist.all_gather_object(rows, times, group=self._group)
        events: Iterable = ((w, *times) for w, row in enumerate(rows[: self.program.depth]) for times in row)
        return self.program.timeline(list(events))
