"""What a runtime reports, saves and takes: a step, tensors of the model by name, and the loss scale."""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple

import torch
import torch.distributed as dist

from .. import Error

_GOOD_STEPS = 2000
"""Number of good steps in a row after which a dynamic loss scale is doubled."""

_INITIAL_SCALE = 65536.0
"""The dynamic loss scale at the beginning."""

_SCALE, _N_GOOD = "loss_scale", "loss_scale.good_steps"
"""Names in a state beside those of the model."""


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
    auxiliary: float = 0.0
    """The mean over all micro-batches of what stages added by `add_loss`."""


class LossScale:
    """A factor of losses for float16: a number, or what is found as large as it can be."""

    def __init__(self, asked: float | str) -> None:
        self.is_dynamic, self._n_good = asked == "dynamic", 0
        self.value = _INITIAL_SCALE if self.is_dynamic else float(asked)

    def after_step(self, is_finite: bool) -> None:
        """Halves a dynamic scale after a bad step, and doubles it after many good ones."""
        if self.is_dynamic:
            self._n_good = self._n_good + 1 if is_finite else 0
            if not is_finite:
                self.value = max(1.0, self.value / 2)
            elif self._n_good % _GOOD_STEPS == 0:
                self.value *= 2

    def state(self) -> dict[str, Any]:
        """What to save of a dynamic scale."""
        if not self.is_dynamic:
            return {}
        return {_SCALE: torch.tensor(self.value, dtype=torch.float64), _N_GOOD: torch.tensor(self._n_good)}

    def saved(self, state: Mapping[str, Any]) -> tuple[float, int]:
        """A dynamic scale in a state, and its good steps; states of earlier versions have none."""
        if not self.is_dynamic:
            return self.value, self._n_good
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

    def load(self, saved: tuple[float, int]) -> None:
        """Goes on from what `saved` returned."""
        self.value, self._n_good = saved


def gathered(modules: Mapping[int, torch.nn.Module], has_whole_names: bool, group: Any) -> dict[str, Any]:
    """All tensors of the modules of all ranks, on the first of them; elsewhere nothing."""
    own: dict[str, Any] = {}
    for stage, module in modules.items():
        for name, value in module.state_dict().items():
            own[prefix(stage, has_whole_names) + name] = value.cpu() if isinstance(value, torch.Tensor) else value
    root = dist.get_process_group_ranks(group)[0]
    parts: list[Any] | None = [None] * dist.get_world_size(group) if dist.get_rank() == root else None
    dist.gather_object(own, parts, dst=root, group=group)
    return {name: tensor for part in parts or [] for name, tensor in part.items()}


def parts(
    state: Mapping[str, Any], modules: Mapping[int, torch.nn.Module], n_stages: int, has_whole_names: bool
) -> dict[int, dict[str, Any]]:
    """The part of a state for each module, which can be loaded."""
    state = {name: tensor for name, tensor in state.items() if name not in (_SCALE, _N_GOOD)}
    if has_whole_names:
        strange = []
    else:
        strange = sorted({name.partition(".")[0] for name in state} - {str(stage) for stage in range(n_stages)})
    if strange or not state:
        found = f"tensors of stage {', '.join(strange)}" if strange else "no tensors"
        raise Error(
            f"the state has {found}, and the program stages 0 to {n_stages - 1}: give every rank what "
            "`state_dict` returned on rank 0 under a program of as many stages"
        )
    made = {}
    for stage, module in modules.items():
        wanted, before = module.state_dict(), prefix(stage, has_whole_names)
        if has_whole_names:
            made[stage] = {name: state[name] for name in wanted if name in state}
        else:
            made[stage] = {name[len(before) :]: tensor for name, tensor in state.items() if name.startswith(before)}
        _check_part(stage, made[stage], wanted)
    return made


def check_state(state: Any) -> None:
    """Raises unless it is a state."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise Error(f"the state is {state!r:.60}: give every rank what `state_dict` returned on rank 0, tensors by their names")


def prefix(stage: int, has_whole_names: bool) -> str:
    """What stands before the names of a stage's tensors in a state."""
    return "" if has_whole_names else f"{stage}."


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
