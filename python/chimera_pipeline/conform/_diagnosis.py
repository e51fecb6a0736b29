"""Causes of wrong gradients: which micro-batches are in them, at which weights, and of which use of a tied parameter."""

from __future__ import annotations

import math
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from ._whole import Expected, Parts, Whole, coefficients


class Finding(NamedTuple):
    """One difference between a pipeline and the model run whole. `rank` is None where it is of the pipeline."""

    kind: str
    step: Optional[int]
    rank: Optional[int]
    reason: str

    def __str__(self) -> str:
        places = [f"step {self.step}" if self.step is not None else "", f"rank {self.rank}" if self.rank is not None else ""]
        where = ", ".join(place for place in places if place)
        return f"{self.kind}: " + (f"{where}: " if where else "") + self.reason


Gradients = Mapping[str, Optional[torch.Tensor]]
Stale = Callable[[], Sequence[Tuple[str, Parts]]]
"""The gradients at weights some of which are those before the last update, with the ranks that have them."""


def differs(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    """Returns true if two tensors are further apart than rounding."""
    if found.shape != wanted.shape:
        return True
    far = (found.double() - wanted.double()).abs().max() if found.numel() else torch.zeros(())
    return not float(far) <= tolerance * max(1.0, float(wanted.double().abs().max()) if wanted.numel() else 0.0)


def of_gradients(
    gradients: Gradients, now: Expected, stale: Stale, whole: Whole, rank: int, step: int, n_ranks: int, tolerance: float
) -> list[Finding]:
    """The differences in the gradients of a rank, each cause once."""
    wrong = {}
    for name, gradient in gradients.items():
        wanted = now.parts[name].sum(0)
        found = torch.zeros_like(wanted) if gradient is None else gradient
        if differs(found, wanted, tolerance):
            wrong[name] = found
    findings: dict[tuple[str, str], list[str]] = {}
    for name, found in wrong.items():
        kind, reason = _cause(name, found, wrong, now, stale, whole, n_ranks, tolerance)
        findings.setdefault((kind, reason), []).append(name)
    return [Finding(kind, step, rank, f"{_listed(names)} {reason}") for (kind, reason), names in findings.items()]


def _cause(
    name: str,
    found: torch.Tensor,
    wrong: Mapping[str, torch.Tensor],
    now: Expected,
    stale: Stale,
    whole: Whole,
    n_ranks: int,
    tolerance: float,
) -> tuple[str, str]:
    """The kind and the reason of a wrong gradient."""
    if found.shape != now.parts[name].shape[1:]:
        return "shape", f"has a gradient of shape {list(found.shape)}"
    if not bool(torch.isfinite(found).all()):
        return "not finite", "has a gradient that is not finite"
    fit = _fit(name, found, wrong, now.parts, tolerance)
    if fit is not None:
        return _of_weights(fit, n_ranks)
    others = [other for other in whole.tied(name) if other != name]
    if others and coefficients([found], [now.apart[name]], tolerance * 100) is not None:
        return "missing tie", f"has the gradient of its own use alone, and is tied to {_listed(others)}"
    for whose, parts in stale():
        if _fit(name, found, wrong, parts, tolerance) is not None:
            return "stale weight", f"has a gradient at the weights of {whose} before the last update"
    return "gradient", "has a gradient other than the sum of those of the micro-batches"


def _fit(
    name: str, found: torch.Tensor, wrong: Mapping[str, torch.Tensor], parts: Mapping[str, torch.Tensor], tolerance: float
) -> Optional[list[float]]:
    """The share of each micro-batch in a gradient, by itself or together with the others that are wrong."""
    alone = coefficients([found], [parts[name]], tolerance * 100)
    if alone is not None:
        return alone
    together = [other for other in wrong if wrong[other].shape == parts[other].shape[1:]]
    return coefficients([wrong[other] for other in together], [parts[other] for other in together], tolerance * 100)


def _of_weights(weights: Sequence[float], n_ranks: int) -> tuple[str, str]:
    """The cause that shares of micro-batches in a gradient show; 1 is right for each."""
    n = len(weights)
    shares = [round(weight, 6) + 0.0 for weight in weights]
    present = [micro for micro, share in enumerate(shares) if share]
    if not present:
        return "missing gradient", "has no gradient"
    if len(present) == 1 and n > 1:
        return "one micro-batch", f"is trained on micro-batch {present[0]} of {n} alone"
    if len(set(shares)) == 1:
        return "scale", f"has a gradient {shares[0]:g} times as large as it should be{_hint(shares[0], n, n_ranks)}"
    others = [micro for micro, share in enumerate(shares) if share != 1]
    if all(shares[micro] == 0 for micro in others):
        return "lost micro-batch", f"lacks {_micro_batches(others)}"
    if all(shares[micro] == 2 for micro in others):
        return "doubled work", f"counts {_micro_batches(others)} twice"
    return "shares", "counts micro-batches " + ", ".join(f"{share:g}" for share in shares) + " times"


def _hint(ratio: float, n: int, n_ranks: int) -> str:
    known = {f"{n} micro-batches": n, f"{n_ranks} ranks": n_ranks}
    for name, count in known.items():
        if math.isclose(ratio, count, rel_tol=1e-5) or math.isclose(ratio, 1 / count, rel_tol=1e-5):
            return f", as if by the number of its {name}"
    return ""


def _micro_batches(numbers: Sequence[int]) -> str:
    return ("micro-batch " if len(numbers) == 1 else "micro-batches ") + ", ".join(map(str, numbers))


def _listed(names: Sequence[str]) -> str:
    """Names, of many the first three."""
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
