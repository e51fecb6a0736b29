"""What is checked before ranks depend on each other: a mistake is told on every rank, and none waits for another in vain."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .. import Error, Program
from ._trees import digest


class About(NamedTuple):
    """Shape, type and role of a tensor of a stage."""

    shape: tuple[int, ...]
    dtype: str
    role: str
    """`trained`, `frozen` or `buffer`."""

    def __str__(self) -> str:
        return f"{self.role}, {list(self.shape)} of {self.dtype}"


Tensors = Dict[str, About]
"""Tensors of a stage by name; a tensor with several names is there under each."""


def check_group(group: Any) -> None:
    """Raises if this rank is not in `group`."""
    if dist.get_rank(group) < 0:
        raise Error(f"rank {dist.get_rank()} is not in `group`: only ranks of the group make a runtime")


def check_alike(program: Program, options: Mapping[str, Any], group: Any) -> None:
    """Raises unless all ranks of a group have the same program and options."""
    own = {"program": program.fingerprint, **{name: repr(value) for name, value in options.items()}}
    all_of_them = _gathered(own, group)
    if len({theirs["program"] for theirs in all_of_them}) > 1:
        raise Error(
            f"ranks have different programs: {[theirs['program'] for theirs in all_of_them]}: make it with the same arguments "
            "on every rank"
        )
    for name in options:
        values = [theirs[name] for theirs in all_of_them]
        if len(set(values)) > 1:
            raise Error(f"ranks have different `{name}`: {', '.join(values)}: give every rank the same")


def make_stages(
    numbers: Iterable[int],
    stages: Callable[[int], torch.nn.Module],
    prepare: Callable[[torch.nn.Module, int], torch.nn.Module],
    tied: Iterable[Mapping[int, str]],
    group: Any,
) -> dict[int, torch.nn.Module]:
    """Makes the modules of this rank, each of which `prepare` changes or refuses.

    If a rank fails, all raise: the others would wait for it. All raise too where replicas of a stage, or parameters that
    are tied, differ in more than their values.
    """
    made: dict[int, torch.nn.Module] = {}
    tensors: dict[int, Tensors] = {}
    failure: Exception | None = None
    try:
        for stage in numbers:
            module = stages(stage)
            if not isinstance(module, torch.nn.Module):
                raise Error(f"`stages({stage})` returned {_a(module)}: return an nn.Module")
            made[stage] = prepare(module, stage)
        _check_shared(made, tied)
        tensors = {stage: _tensors(module) for stage, module in made.items()}
    except Exception as error:
        failure = error
    raise_together(failure, "make its stages", group)
    _check_replicas(_gathered(tensors, group), tied)
    return made


def raise_together(failure: Exception | None, act: str, group: Any) -> None:
    """Raises on all ranks if one has failed to `act`: the others would wait for it."""
    all_of_them = _gathered(None if failure is None else f"{type(failure).__name__}: {failure}", group)
    if failure is not None:
        raise failure
    for rank, told in enumerate(all_of_them):
        if told is not None:
            raise Error(f"rank {rank} of the group could not {act}: {told}")


def refuse_wrapped(module: torch.nn.Module, stage: int, instead: str) -> None:
    """Raises for a stage whose gradients other code of PyTorch sums by itself."""
    from torch.distributed.fsdp import FullyShardedDataParallel  # Slow to import, and seldom needed.

    for part in module.modules():
        if isinstance(part, (DistributedDataParallel, FullyShardedDataParallel)):
            raise Error(f"stage {stage} is in {type(part).__name__}, which sums gradients before those of all pipes are there: {instead}")


def refuse_synchronized(module: torch.nn.Module, stage: int) -> None:
    """Raises for a stage that talks to other ranks in each forward and backward."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.SyncBatchNorm):
            raise Error(
                f"`{name or type(part).__name__}` of stage {stage} is a SyncBatchNorm, which sums over a process group within each forward "
                "and backward: ranks of a pipeline come there at other times and with other micro-batches, so that they would wait for "
                "ever or add what does not belong together: give it a BatchNorm (without convert_sync_batchnorm), a GroupNorm or a "
                "LayerNorm"
            )


def refuse_sharded(module: torch.nn.Module, stage: int, instead: str) -> None:
    """Raises for a stage of which a rank has parts of tensors alone."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            raise Error(f"`{name}` of stage {stage} is a DTensor, and this runtime takes whole tensors: {instead}")


def tensor_batch(batch: Any, name: str, n: int, instead: str, halved: int | None = None) -> torch.Tensor:
    """The batch, if it is a tensor whose samples divide into `n` parts.

    `halved` is the number of micro-batches where a schedule cuts each of them into two.
    """
    if not isinstance(batch, torch.Tensor):
        raise Error(f"`{name}` is {_a(batch)}, and this runtime takes one tensor: {instead}")
    if batch.dim() == 0:
        raise Error(f"`{name}` is a single number: its first dimension is that of samples")
    if len(batch) == 0 or len(batch) % n:
        why, instead = "", ""
        if halved is not None:
            why = f" (the schedule halves each of the {halved} micro-batches)"
            instead = ', or schedule it with scaling="direct"'
        raise Error(
            f"`{name}` has {len(batch)} samples, which do not divide into {n} equal parts{why}: give a multiple of {n}{instead}"
        )
    return batch


def one_loss(loss: Any) -> torch.Tensor:
    """What `loss_fn` returned, if it is one number as a tensor."""
    if not isinstance(loss, torch.Tensor):
        raise Error(f"`loss_fn` returned {_a(loss)}: return the mean over the samples as a tensor, without `.item()`")
    if loss.numel() != 1:
        raise Error(
            f"`loss_fn` returned a tensor of shape {list(loss.shape)}: return the mean over the samples, one number, such as by "
            'reduction="mean"'
        )
    return loss


def refuse_hooks(module: torch.nn.Module, stage: int) -> None:
    """Raises for hooks of parameters, which versions of the weights do not have."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise Error(
                f"`{name}` of stage {stage} has a hook, and an asynchronous schedule takes gradients of copies of it, which would not call "
                "the hook: remove it, and change gradients in the optimizer, or choose a synchronous schedule"
            )


class Trained:
    """The parameters that needed gradients when a runtime was made, which alone are trained."""

    def __init__(self, modules: Mapping[int, torch.nn.Module]) -> None:
        self._modules = modules
        self._names = {stage: set(_trained(module)) for stage, module in modules.items()}

    def digest(self) -> int:
        """A number that says which parameters need gradients."""
        return digest({stage: _trained(module) for stage, module in self._modules.items()})

    def check(self, runtime: str) -> None:
        """Raises where others need gradients by now. Those that need none any more are left alone."""
        for stage, module in self._modules.items():
            for name in _trained(module):
                if name not in self._names[stage]:
                    raise Error(
                        f"`{name}` of stage {stage} needs a gradient, and did not when this runtime was made, so that it would not be "
                        f"trained: make a new {runtime} of these modules"
                    )


@contextlib.contextmanager
def evaluating(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Puts modules into evaluation mode, and each of their parts back into the mode that it had."""
    modes = []
    for module in modules:
        modes += [(part, part.training) for part in module.modules()]
        module.eval()
    try:
        yield
    finally:
        # A part of a module in training may be in evaluation mode for good, such as a frozen batch norm.
        for part, mode in modes:
            if part.training != mode:
                part.train(mode)


class Guard:
    """Refuses steps after one that failed, and steps that could not train."""

    def __init__(self) -> None:
        self._has_failed = False

    def check(self) -> None:
        """Raises after a step that failed."""
        if self._has_failed:
            raise Error(
                "an earlier step of this runtime failed half way, and its messages would be taken for those of this one: start the "
                "processes again from what was saved"
            )

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around all messages of a step."""
        self.check()
        self._has_failed = True
        yield
        self._has_failed = False

    @staticmethod
    def check_gradients() -> None:
        """Raises where autograd is off."""
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise Error("gradients are off here (torch.no_grad or inference_mode), and `step` trains: call it outside, or `evaluate`")


def make_groups(wanted: Iterable[Iterable[int]], group: Any) -> dict[tuple[int, ...], Any]:
    """Makes a process group for each set of ranks, in the same order on all ranks of `group`. Sets of one have none."""
    made: dict[tuple[int, ...], Any] = {}
    is_world, me = dist.get_world_size(group) == dist.get_world_size(), dist.get_rank()
    backend = None if dist.get_backend(group) == dist.get_backend() else dist.get_backend(group)
    for ranks in (tuple(sorted(set(ranks))) for ranks in wanted):
        if len(ranks) == 1 or ranks in made:
            continue
        if is_world:
            made[ranks] = dist.new_group(list(ranks), backend=backend)
        else:
            # Ranks that are not in `group` make none now. PyTorch names a group by how many a rank has made before, so that
            # ranks beside this set make one too, of themselves.
            members = ranks if me in ranks else (me,)
            made[ranks] = dist.new_group(list(members), backend=backend, use_local_synchronization=True)
    return made


def backend_of(group: Any, device: torch.device) -> str:
    """Name of the backend that carries tensors of a device."""
    return str(group._get_backend(device).name())


def gathered_numbers(own: list[int], device: torch.device, group: Any) -> list[list[int]]:
    """The whole numbers of each rank, of which all have as many."""
    row = torch.tensor(own, dtype=torch.int64, device=device)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, row, group=group)
    return [row.tolist() for row in rows]


def _gathered(own: Any, group: Any) -> list[Any]:
    all_of_them: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(all_of_them, own, group=group)
    return all_of_them


def _a(thing: Any) -> str:
    return f"a {type(thing).__name__}"


def _tensors(module: torch.nn.Module) -> Tensors:
    tensors = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        tensors[name] = About(tuple(parameter.shape), str(parameter.dtype), "trained" if parameter.requires_grad else "frozen")
    for name, buffer in module.named_buffers(remove_duplicate=False):
        tensors[name] = About(tuple(buffer.shape), str(buffer.dtype), "buffer")
    return tensors


def _trained(module: torch.nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def _check_shared(made: dict[int, torch.nn.Module], tied: Iterable[Mapping[int, str]]) -> None:
    """Raises where two stages have a parameter in common that the program does not know as tied: it would be updated twice."""
    known = {id(dict(made[s].named_parameters(remove_duplicate=False)).get(n)) for names in tied for s, n in names.items() if s in made}
    seen: dict[int, tuple[int, str]] = {}
    for stage, module in made.items():
        for name, parameter in module.named_parameters():
            other, theirs = seen.setdefault(id(parameter), (stage, name))
            if other != stage and id(parameter) not in known:
                raise Error(
                    f"stages {other} and {stage} have a parameter in common, `{theirs}` and `{name}`: lower with tied=[[{other}, {stage}]] "
                    f'and give Runtime tied=[{{{other}: "{theirs}", {stage}: "{name}"}}], or make one for each'
                )


def _check_replicas(of_ranks: List[Dict[int, Tensors]], tied: Iterable[Mapping[int, str]]) -> None:
    """Raises on all ranks where what they will sum or copy has different shapes."""
    first: dict[int, tuple[int, Tensors]] = {}
    for rank, stages in enumerate(of_ranks):
        for stage, tensors in stages.items():
            there, wanted = first.setdefault(stage, (rank, tensors))
            if list(tensors) != list(wanted):
                names = sorted(set(tensors) ^ set(wanted)) or ["their order"]
                raise Error(
                    f"replicas of stage {stage} on ranks {there} and {rank} of the group differ in {', '.join(names)}: make them alike"
                )
            for name, about in tensors.items():
                if about != wanted[name]:
                    raise Error(
                        f"replicas of stage {stage} differ in `{name}`: {wanted[name]} on rank {there} of the group and {about} on rank "
                        f"{rank}: make them alike"
                    )
    for tied_set in tied:
        found: dict[int, About] = {}
        for stage, name in tied_set.items():
            parameters = {name: about for name, about in first[stage][1].items() if about.role != "buffer"}
            if name not in parameters:
                raise Error(f"stage {stage} has no parameter `{name}`, which `tied` names: choose one of {', '.join(parameters)}")
            found[stage] = parameters[name]
        if len(set(found.values())) > 1:
            listed = "; ".join(f"`{tied_set[stage]}` of stage {stage} is {about}" for stage, about in found.items())
            raise Error(f"tied parameters differ: {listed}: make them alike")
