"""Batches: cut into units, and compared between ranks before any of them waits for another."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .. import Error
from . import _checks, _trees
from ._trees import Value

IGNORED = -100
"""The target that counts for nothing, as in PyTorch's and transformers' losses."""

Normalize = Any
"""`"mean"`, `"tokens"`, or a function that counts what a target is made of."""


class Row(NamedTuple):
    """What each rank tells all others before a step, as whole numbers."""

    call: int
    is_ready: int
    n_samples: int
    """Number of samples of the inputs; 0 where there are none, or units are given one by one."""
    n_targets: int
    n_counted: int
    """What the loss is divided by; -1 where this rank has no target."""
    keywords: int
    modules: int
    """A digest of which parameters need gradients."""


def row_length(n_units: int) -> int:
    """Number of numbers that each rank tells."""
    return len(Row._fields) + 2 * n_units


class Given(NamedTuple):
    """A batch as it was given to this rank, in units."""

    args: list[Value]
    """Positional arguments of each unit."""
    keywords: list[dict[str, Any]]
    targets: list[Any]
    n_samples: int
    n_targets: int
    n_counted: int
    signatures: list[int]
    """One for the positional arguments of each unit, and one for its keyword arguments."""

    def row(self, modules: int) -> list[int]:
        """Its description for other ranks."""
        keywords = _trees.digest(sorted(self.keywords[0])) if self.keywords[0] else 0
        return [self.n_samples, self.n_targets, self.n_counted, keywords, modules, *self.signatures]


class Cutter:
    """Cuts batches into as many units as a program has."""

    def __init__(self, n_units: int, halved: int | None, device: torch.device, normalize: Normalize) -> None:
        self._n, self._halved, self._device = n_units, halved, device
        self._count = counter(normalize)

    @property
    def is_counted(self) -> bool:
        """Whether losses are divided by what targets count."""
        return self._count is not None

    def cut(self, x: Any, target: Any, keywords: Mapping[str, Any]) -> Given:
        """The units of a batch. Raises where it does not divide into them."""
        sizes: dict[str, int] = {}
        # Without `x` the first stage has keyword arguments alone.
        args = [()] * self._n if x is None else self._units(x, "x", sizes)
        named = {name: self._units(value, name, sizes) for name, value in keywords.items()}
        n_samples = _one(sizes)
        target_sizes: dict[str, int] = {}
        targets = [] if target is None else self._units(target, "target", target_sizes)
        if n_samples and target_sizes and _one(target_sizes) != n_samples:
            _one({**sizes, **target_sizes})
        count = int(sum(map(self._count, targets))) if targets and self._count is not None else -1
        per_unit = [{name: units[i] for name, units in named.items()} for i in range(self._n)]
        values = [_value(arg) for arg in args]
        signatures = self._signatures(None if x is None else [(value.tensors, value.around) for value in values])
        signatures += self._signatures([_trees.taken_apart(unit) for unit in per_unit] if named else None)
        return Given(values, per_unit, targets, n_samples, _one(target_sizes), count, signatures)

    def _signatures(self, units: list[tuple[list[torch.Tensor], Any]] | None) -> list[int]:
        if units is None:
            return [0] * self._n
        words = [repr(_trees.signature(*unit)) for unit in units]
        digests = {word: _trees.digest(word) for word in set(words)}
        return [digests[word] for word in words]

    def _units(self, value: Any, name: str, sizes: dict[str, int]) -> list[Any]:
        """One value for each unit: parts of the samples of all tensors, or those of a list."""
        if isinstance(value, list):
            return self._listed(value, name)
        tensors, around = _trees.taken_apart(value)
        _trees.check_plain(around, f"`{name}` has")
        if around is None and tensors[0].dim() == 0:
            raise Error(f"`{name}` is a single number: its first dimension is that of samples")
        units: list[list[torch.Tensor]] = [[] for _ in range(self._n)]
        for tensor in tensors:
            if tensor.dim() == 0:
                parts: Sequence[torch.Tensor] = [tensor.detach().to(self._device)] * self._n
            else:
                _checks.tensor_batch(tensor, name, self._n, "", self._halved)
                if sizes.setdefault(name, len(tensor)) != len(tensor):
                    raise Error(f"tensors of `{name}` have {sizes[name]} and {len(tensor)} samples: give each as many")
                parts = tensor.detach().to(self._device).split(len(tensor) // self._n)
            for unit, part in zip(units, parts):
                # Each unit counts by itself whether it is changed in place: autograd would take a change of one for one of all.
                unit.append(part.data)
        return [_trees.joined(unit, around) for unit in units]

    def _listed(self, value: list[Any], name: str) -> list[Any]:
        if len(value) != self._n:
            halves = "" if self._halved is None else f" (the schedule halves each of the {self._halved} micro-batches)"
            raise Error(
                f"`{name}` is a list, which stands for micro-batches one by one, and has {len(value)} of {self._n}{halves}: give as "
                "many, or one tensor for all samples"
            )
        for unit in value:
            tensors, around = _trees.taken_apart(unit)
            _trees.check_plain(around, f"a micro-batch of `{name}` has")
            if not tensors:
                raise Error(f"`{name}` is a list, which stands for micro-batches one by one, and a {type(unit).__name__} is none")
        return [_trees.mapped(lambda tensor: tensor.detach().to(self._device).data, unit) for unit in value]


def _value(arg: Any) -> Value:
    tensors, around = _trees.taken_apart(arg)
    return Value(tensors, around, (False,) * len(tensors))


def counter(normalize: Normalize) -> Callable[[Any], float] | None:
    """What counts the parts of a target; None where each micro-batch counts as one."""
    if normalize == "mean":
        return None
    if normalize == "tokens":
        return lambda target: sum(int((tensor != IGNORED).sum()) for tensor in _trees.taken_apart(target)[0])
    if callable(normalize):
        given: Callable[[Any], float] = normalize
        return given
    raise Error(f'`normalize` is {normalize!r}: choose "mean", "tokens", or a function that counts the tokens of a target')


def _one(sizes: Mapping[str, int]) -> int:
    """The number of samples that all have; 0 where none has any."""
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"`{name}` {size}" for name, size in sizes.items())
        raise Error(f"the batch has another number of samples in each of {listed}: give all as many")
    return next(iter(sizes.values()), 0)


class Shapes:
    """The signatures of units of which a pipeline knows the shapes of all activations."""

    _MOST = 1000

    def __init__(self, are_dynamic: bool) -> None:
        self._are_dynamic, self._known = are_dynamic, set[Any]()
        self.are_described = True

    def begin(self, signatures: Sequence[Any]) -> bool:
        """Says whether all is to be forgotten before a step, because it became too much."""
        is_full = len(self._known) > self._MOST
        self.are_described = self._are_dynamic or is_full or not self._known.issuperset(signatures)
        return is_full

    def learn(self, signatures: Sequence[Any]) -> None:
        """Remembers the signatures of a step that went well."""
        self._known.update(signatures)

    def forget(self) -> None:
        """Forgets all, as after a failure, when not all ranks have learnt the same."""
        self._known.clear()


def gathered_outputs(own: Mapping[int, Any], holders: Sequence[int], first: int, group: Any) -> Any:
    """The outputs of all units, joined in their order on rank `first` of a group; `holders` are the ranks that have some."""
    ranks, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    if me != first:
        if me in holders:
            dist.send_object_list([dict(own)], ranks[first], group=group)
        return None
    units = dict(own)
    for rank in holders:
        if rank != first:
            received: list[Any] = [None]
            dist.recv_object_list(received, ranks[rank], group=group)
            units.update(received[0])
    apart = [_trees.taken_apart(units[unit]) for unit in sorted(units)]
    columns = zip(*(tensors for tensors, _ in apart))
    return _trees.joined([torch.stack(c) if c[0].dim() == 0 else torch.cat(c) for c in columns], apart[0][1])


class Agreed(NamedTuple):
    """What all ranks know of a step before it."""

    signatures: list[tuple[int, ...]]
    """Of the units of this pipeline."""
    n_counted: int
    """What the losses of all pipelines are divided by, where that is counted."""


def compare(rows: list[list[int]], depth: int, own_group: int, n_units: int, is_counted: bool) -> Agreed:
    """Raises where ranks were called or given batches otherwise; `rows` are those of all ranks.

    All ranks see the same rows, so that all raise.
    """
    heads = [Row(*row[: len(Row._fields)]) for row in rows]
    if len({head.call for head in heads}) > 1:
        raise Error("ranks call different functions (`step`, `evaluate`), or with other options: call the same on every rank")
    for name, sizes in (("x", {h.n_samples for h in heads}), ("target", {h.n_targets for h in heads})):
        if len(sizes - {0}) > 1:
            raise Error(
                f"ranks were given batches of {', '.join(map(str, sorted(sizes - {0})))} samples in `{name}`, and no weight was updated: "
                "give all workers of a group the same batch, and all groups as many samples"
            )
    count = 0
    signatures: list[tuple[int, ...]] = []
    for group in range(len(rows) // depth):
        ranks = range(group * depth, (group + 1) * depth)
        keywords = {rank: heads[rank].keywords for rank in ranks}
        if len(set(keywords.values())) > 1:
            other = next(rank for rank in ranks if keywords[rank] != keywords[ranks[0]])
            raise Error(
                f"rank {other} of the group was given other keyword arguments than rank {ranks[0]}: give all of a pipeline the same"
            )
        counts = {heads[rank].n_counted for rank in ranks if heads[rank].n_counted >= 0}
        if len(counts) > 1:
            raise Error(f"ranks of one pipeline count {', '.join(map(str, sorted(counts)))} tokens: give them the same targets")
        count += next(iter(counts), 0)
        of_units = _signatures(rows, ranks, n_units)
        if group == own_group:
            modules = tuple(heads[rank].modules for rank in ranks)
            signatures = [(heads[0].call, _trees.digest(modules), *of_unit) for of_unit in of_units]
    if is_counted and count == 0:
        raise Error("the whole batch has no token that counts, of which a mean were taken: leave it out")
    return Agreed(signatures, count)


def _signatures(rows: list[list[int]], ranks: range, n_units: int) -> list[tuple[int, ...]]:
    """Those of the units of one pipeline, which each of its ranks may have been given."""
    start = len(Row._fields)
    made = []
    for unit in range(n_units):
        of_args = {rows[rank][start + unit] for rank in ranks} - {0}
        of_keywords = {rows[rank][start + n_units + unit] for rank in ranks} - {0}
        if len(of_args) > 1 or len(of_keywords) > 1:
            raise Error("ranks of one pipeline were given batches of other shapes or types: give all workers of a group the same batch")
        made.append((*of_args, 0, *of_keywords))
    return made
