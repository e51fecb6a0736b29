"""The trial of a pipeline beside the model run whole."""

from __future__ import annotations

import functools
import math
from typing import Callable, List, NamedTuple, Optional, Sequence, Union

import torch

from .. import Error
from ._diagnosis import Finding, Stale, differs, of_gradients
from ._ranks import Failed, Hang, on_ranks
from ._trial import Batch, Record, Tensors, Trial, record
from ._whole import Expected, MakeOptimizer, Parts, Whole


class NotThePipeline(Error):
    """A pipeline that does not compute what the whole model does; `findings` has each difference."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("the pipeline is not the model run whole:\n" + "\n".join(f"- {finding}" for finding in findings))
        self.findings = list(findings)


class Report(NamedTuple):
    """The results of a pipeline that is right."""

    n_ranks: List[int]
    losses: List[float]
    norms: List[float]


def check_pipeline(
    make: Callable[[], Trial],
    *,
    whole: Callable[[], torch.nn.Module],
    loss_fn: Callable[..., torch.Tensor],
    batches: Sequence[Batch],
    micro_batches: int,
    n_ranks: Union[int, Sequence[int]],
    optimizer: Optional[MakeOptimizer] = None,
    max_norm: Optional[float] = None,
    is_sum: bool = False,
    tolerance: float = 1e-10,
    patience: float = 30.0,
) -> Report:
    """Runs a pipeline on ranks over gloo beside the model run whole, or raises `NotThePipeline`.

    `make()` is called on each rank, where `torch.distributed` is initialized, and returns its `Trial`; `whole()` makes the model. The
    kit starts both with the weights of the pipeline and compares, for each batch: the loss, the gradients, their norm if
    `max_norm` is given, the weights after `optimizer`'s update, replicas with one another, and at the end what is saved. A batch
    divides into `micro_batches`; its loss is the mean of `loss_fn` over them, or with `is_sum` the sum.

    Give numbers in f64, without dropout, and functions that a new process can import. With several `n_ranks` the pipeline is tried
    with each. No rank going on for `patience` seconds is a hang.
    """
    if not batches or any(len(x) % micro_batches for x, _ in batches):
        raise Error(f"give batches whose samples divide into {micro_batches} micro-batches")
    numbers = [n_ranks] if isinstance(n_ranks, int) else list(n_ranks)
    findings: list[Finding] = []
    firsts: dict[int, float] = {}
    expected: list[Expected] = []
    for number in numbers:
        try:
            records = on_ranks(number, record, make, list(batches), max_norm, patience=patience)
        except Hang as hang:
            findings += [Finding("hang", None, rank, text) for rank, text in hang.waits.items()]
            continue
        except Failed as failed:
            findings += [Finding("failure", None, rank, text.strip().splitlines()[-1]) for rank, text in failed.errors.items()]
            continue
        model = Whole(whole(), loss_fn, micro_batches, is_sum=is_sum, optimizer=optimizer, max_norm=max_norm)
        found, expected = compare(records, model, batches, max_norm=max_norm, tolerance=tolerance)
        findings += found
        firsts.update({number: step.loss for each in records for step in each.steps[:1] if step.loss is not None})
    if len(firsts) > 1 and max(firsts.values()) - min(firsts.values()) > tolerance * max(1.0, max(map(abs, firsts.values()))):
        told = ", ".join(f"{loss:g} on {number} ranks" for number, loss in firsts.items())
        findings.insert(0, Finding("loss by ranks", 0, None, f"the loss depends on the number of ranks: {told}"))
    if findings:
        raise NotThePipeline(findings)
    return Report(numbers, [step.loss for step in expected], [step.norm for step in expected] if max_norm is not None else [])


def compare(
    records: Sequence[Record], whole: Whole, batches: Sequence[Batch], *, max_norm: float | None, tolerance: float
) -> tuple[list[Finding], list[Expected]]:
    """Returns the findings up to the first step that differs, and the results of the whole model."""
    return _Comparison(records, whole, batches, max_norm, tolerance).run()


class _Comparison:
    """Records of all ranks beside the whole model."""

    def __init__(self, records: Sequence[Record], whole: Whole, batches: Sequence[Batch], max_norm: float | None, tolerance: float) -> None:
        self._records, self._whole, self._batches = records, whole, batches
        self._max_norm, self._tolerance = max_norm, tolerance
        self._found: list[Finding] = []
        self._starts: list[Tensors] = []
        """The weights at the start of each step."""

    def run(self) -> tuple[list[Finding], list[Expected]]:
        expected: list[Expected] = []
        self._start()
        for step, batch in enumerate(self._batches):
            if self._found:
                return self._found, expected
            self._starts.append(self._whole.weights())
            expected.append(self._whole.step(batch))
            self._step(step, expected[-1], functools.cache(lambda: self._stale(step)))
        if not self._found:
            self._saved()
        return self._found, expected

    def _start(self) -> None:
        """Gives the whole model the weights of the pipeline, whose replicas must agree."""
        weights: dict[str, torch.Tensor] = {}
        for rank, its in enumerate(self._records):
            for name, value in its.start.items():
                if name not in self._whole.names:
                    self._add("names", None, rank, f"`{name}` is no parameter of the whole model")
                elif differs(value, weights.setdefault(name, value), self._tolerance):
                    self._add("replicas", None, rank, f"`{name}` begins with other values than on a rank before")
        missing = sorted(name for name in self._whole.names if not any(other in weights for other in self._whole.tied(name)))
        if missing:
            self._add("names", None, None, f"no rank has `{missing[0]}`" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))
        if not self._found:
            self._whole.load(weights)

    def _stale(self, step: int) -> list[tuple[str, Parts]]:
        """The gradients of a step if all ranks, or one, have the weights before the last update."""
        if step == 0:
            return []
        now, before, batch = self._starts[step], self._starts[step - 1], self._batches[step]
        of_ranks = [(f"rank {rank}", its.start) for rank, its in enumerate(self._records)]
        return [
            (whose, self._whole.parts_at({**now, **{name: before[name] for name in names}}, batch))
            for whose, names in [("all ranks", before), *of_ranks]
        ]

    def _step(self, step: int, now: Expected, stale: Stale) -> None:
        for rank, its in enumerate(self._records):
            made = its.steps[step]
            if made.loss is not None and not math.isclose(made.loss, now.loss, rel_tol=self._tolerance, abs_tol=self._tolerance):
                self._add("loss", step, rank, f"the loss is {made.loss:.9g}, and {now.loss:.9g} of the whole model")
            n_ranks = len(self._records)
            self._found += of_gradients(made.gradients, now, stale, self._whole, rank, step, n_ranks, self._tolerance)
        if all(its.steps[step].loss is None for its in self._records):
            self._add("loss", step, None, "no rank knows the loss")
        if self._found:
            return
        self._norms(step, now)
        for rank, its in enumerate(self._records):
            self._weights(step, rank, its, now)

    def _norms(self, step: int, now: Expected) -> None:
        if self._max_norm is None:
            return
        each = sum(float(g.double().square().sum()) for its in self._records for g in its.steps[step].gradients.values() if g is not None)
        for rank, its in enumerate(self._records):
            norm = its.steps[step].norm
            if norm is None or math.isclose(norm, now.norm, rel_tol=max(self._tolerance, 1e-9)):
                continue
            own = math.sqrt(sum(float(g.double().square().sum()) for g in its.steps[step].gradients.values() if g is not None))
            why = ""
            if math.isclose(norm, math.sqrt(each), rel_tol=1e-6):
                why = ": it counts each replica"
            elif math.isclose(norm, own, rel_tol=1e-6):
                why = ": it is that of this rank's gradients alone"
            self._add("norm", step, rank, f"the norm of all gradients is {norm:.9g}, and {now.norm:.9g} of the whole model{why}")

    def _weights(self, step: int, rank: int, its: Record, now: Expected) -> None:
        weights = its.steps[step].weights
        before = its.steps[step - 1].weights if step else its.start
        causes: dict[tuple[str, str], list[str]] = {}
        for name, value in weights.items():
            if not differs(value, now.weights[name], self._tolerance):
                continue
            cause = "update", "is another than that of the whole model after the update"
            if not differs(value, before[name], 0.0):
                cause = "update", "is not updated"
            elif name in now.unclipped and not differs(value, now.unclipped[name], self._tolerance):
                cause = "unclipped", "is updated by gradients that are not clipped"
            causes.setdefault(cause, []).append(name)
        for (kind, reason), names in causes.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._add(kind, step, rank, f"`{names[0]}`{more} {reason}")

    def _saved(self) -> None:
        """Compares what ranks saved, if they save."""
        saved = {name: (rank, value) for rank, its in enumerate(self._records) for name, value in its.saved.items()}
        if not saved:
            return
        wanted = {name: value for name, value in self._whole.state().items() if isinstance(value, torch.Tensor)}
        for name in sorted(wanted.keys() - saved.keys()):
            self._add("saved", None, None, f"`{name}` is in no rank's checkpoint")
        for name, (rank, value) in saved.items():
            if name not in wanted:
                self._add("saved", None, rank, f"`{name}` is not in a checkpoint of the whole model")
            elif differs(value, wanted[name], self._tolerance):
                self._add("saved", None, rank, f"`{name}` is saved with other values than it was trained to")

    def _add(self, kind: str, step: int | None, rank: int | None, reason: str) -> None:
        self._found.append(Finding(kind, step, rank, reason))
