"""The buckets of a program's file, with the parameters, optimizers and ranks of each."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
import torch.distributed as dist

from .. import Error
from . import _checks
from ._reductions import MakeOptimizer, MakeScheduler, Updated, buffers_of
from ._support import Tied

Groups = Callable[[str], Mapping[str, Any]]
"""Options of an optimizer, such as its rate and decay, by the name of a parameter."""


def make_buckets(
    written: List[Dict[str, Any]],
    modules: Mapping[int, torch.nn.Module],
    tied: Tied,
    optimizer: Optional[MakeOptimizer],
    scheduler: Optional[MakeScheduler],
    groups: Optional[Groups],
    *,
    depth: int,
    n_stages: int,
    has_whole_names: bool,
    group: Any,
) -> List[Updated]:
    """The buckets that are `written` in the program's file; those of other workers are empty. Raises on all ranks of `group`."""
    all_ranks = dist.get_process_group_ranks(group)
    n_of_update = sum(bucket["update"] == 0 for bucket in written)
    tied_here = {id(modules[s].get_parameter(name)) for names in tied for s, name in names.items() if s in modules}
    # Gathered gradients come in the order of ranks within their group.
    width = len(all_ranks) // depth
    ranks_of = [sorted({all_ranks[g * depth + w] for g in range(width) for w in bucket["members"]}) for bucket in written]
    made_groups = _checks.make_groups(ranks_of, group)
    buckets: List[Updated] = []
    failure: Exception | None = None
    for index, (bucket, ranks) in enumerate(zip(written, ranks_of)):
        here = [s for s in dict.fromkeys(bucket["stages"]) if s in modules]
        is_tied = bucket["update"] == 0 and index >= n_stages
        if is_tied:
            # Of tied stages only this parameter is the same; the rest is in the bucket of each.
            names = tied[index - n_stages]
            of_first = _name(min(names), names[min(names)], has_whole_names)
            own = {of_first: modules[s].get_parameter(names[s]) for s in here[:1]}
        else:
            named = ((_name(s, name, has_whole_names), p) for s in here for name, p in modules[s].named_parameters())
            own = {name: p for name, p in named if id(p) not in tied_here}
        trained = {name: p for name, p in own.items() if p.requires_grad}
        buffers = buffers_of([] if is_tied else [modules[s] for s in here])
        made = Updated(list(trained.values()), ranks, made_groups.get(tuple(ranks)), buffers)
        buckets.append(made)
        if bucket["update"]:
            made.take_optimizer(buckets[index % n_of_update])
            continue
        made.make_equal([p for p in own.values() if not p.requires_grad])
        try:
            if optimizer is not None:
                made.make_optimizer(_with_groups(optimizer, trained, groups), scheduler)
        except Exception as error:
            failure = failure or error
    _checks.raise_together(failure, "make its optimizers", group)
    return buckets


def _name(stage: int, name: str, is_whole: bool) -> str:
    return name if is_whole else f"{stage}.{name}"


def _with_groups(optimizer: MakeOptimizer, named: Mapping[str, torch.nn.Parameter], groups: Optional[Groups]) -> MakeOptimizer:
    """The optimizer of parameters that are grouped by the options that `groups` gives for their names."""
    if groups is None:
        return optimizer
    by_options: Dict[str, Dict[str, Any]] = {}
    for name, parameter in named.items():
        options = groups(name)
        if not isinstance(options, Mapping) or "params" in options:
            raise Error(f"`groups({name!r})` returned {options!r:.60}: return a dict of options of the optimizer, such as weight_decay")
        by_options.setdefault(repr(sorted(options.items())), {"params": [], **options})["params"].append(parameter)
    made: List[Any] = list(by_options.values())
    return lambda _: optimizer(made)
