"""The state of optimizers by names of parameters, whichever ranks hold them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import torch
import torch.distributed as dist

from .. import Error
from . import _checks

Names = Mapping[int, Sequence[str]]
"""The names of a parameter, by its `id`: a tied one has several."""


def gathered(optimizers: Sequence[Any], names: Names, group: Any) -> Dict[str, Any]:
    """State and options of each parameter on the first rank, each once; elsewhere nothing."""
    own: Dict[str, Any] = {}
    for optimizer in optimizers:
        for options, parameters in _groups(optimizer):
            for parameter in parameters:
                state = {key: _on_cpu(value) for key, value in optimizer.state.get(parameter, {}).items()}
                own |= {name: {"state": state, "options": options} for name in names.get(id(parameter), ())}
    root = dist.get_process_group_ranks(group)[0]
    parts: List[Any] | None = [None] * dist.get_world_size(group) if dist.get_rank() == root else None
    dist.gather_object(own, parts, dst=root, group=group)
    return {name: entry for part in parts or [] for name, entry in part.items()}


def load(optimizers: Sequence[Any], names: Names, saved: Mapping[str, Any], group: Any) -> None:
    """Loads what `gathered` returned. Where a rank cannot, all raise, and none has loaded anything."""
    failure: Exception | None = None
    try:
        made = [_own(optimizer, names, saved) for optimizer in optimizers]
    except Exception as error:
        failure = error
    _checks.raise_together(failure, "load its optimizers", group)
    for optimizer, state in zip(optimizers, made):
        optimizer.load_state_dict(state)


def _own(optimizer: Any, names: Names, saved: Mapping[str, Any]) -> Dict[str, Any]:
    """The state of one optimizer, as PyTorch takes it: parameters by their places."""
    states: Dict[int, Any] = {}
    groups: List[Dict[str, Any]] = []
    n_parameters = 0
    for options, parameters in _groups(optimizer):
        places = range(n_parameters, n_parameters + len(parameters))
        n_parameters += len(parameters)
        entries = {place: _entry(names[id(p)][0], saved) for place, p in zip(places, parameters) if id(p) in names}
        states |= {place: entry["state"] for place, entry in entries.items() if entry["state"]}
        found = [entry["options"] for entry in entries.values()]
        if any(other != found[0] for other in found):
            raise Error("parameters that are in one group of an optimizer were saved with different options: make groups as they were then")
        groups.append({**options, **(found[0] if found else {}), "params": list(places)})
    return {"state": states, "param_groups": groups}


def _entry(name: str, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(saved, Mapping) or not saved:
        raise Error("the state of the optimizers is empty: give every rank what `optimizer_state_dict` returned on rank 0")
    if name not in saved:
        raise Error(f"the state of the optimizers lacks `{name}`: it was saved from another model, or with other frozen parameters")
    entry: Mapping[str, Any] = saved[name]
    return entry


def _groups(optimizer: Any) -> List[tuple[Dict[str, Any], List[torch.nn.Parameter]]]:
    """The groups of an optimizer: options, parameters."""
    left_out = ("params", "param_names")
    return [({key: value for key, value in group.items() if key not in left_out}, group["params"]) for group in optimizer.param_groups]


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
