"""Carries out the row of one worker. It knows no schedule: each op says what it eats and makes."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple

import torch

from ._messages import Coming, Failed, Messages
from ._reductions import Updated
from ._stage import Stage, Unit
from ._trees import Value


class Batch(NamedTuple):
    """The units of a batch, as far as this worker needs them."""

    handed: list[Value]
    """Positional arguments of the first stage; empty where this worker does not have it."""
    keywords: list[dict[str, Any]]
    targets: list[Any]
    """Empty where this worker does not have the last stage."""
    signatures: list[Any]
    """Units of one signature make activations of the same shapes, on all ranks of a pipeline."""
    is_described: bool
    """Whether a signature is new, so that activations go with descriptions."""
    auxiliary: float = 1.0
    """The factor of auxiliary losses."""


class Executor:
    """One worker's row, step after step.

    Where this rank fails, it goes on with nothing to compute until its row is done, so that no other rank waits for it.
    `failure` is then what went wrong, and `is_failed` is true where another's failure left this rank without its inputs, too.
    """

    def __init__(
        self,
        file: dict[str, Any],
        row: list[dict[str, Any]],
        stages: dict[int, Stage],
        buckets: list[Updated],
        messages: Messages,
    ) -> None:
        self._tokens, self._row, self._last = file["tokens"], row, file["stages"] - 1
        self._stages_of = [[s for s in bucket["stages"] if s in stages] for bucket in file["buckets"]]
        self._updates = [bucket["update"] for bucket in file["buckets"]]
        self._units_per_update = file["micro_batches"] * file["units_per_micro"] // (1 + max(self._updates))
        self._has_barrier = file["barrier"]
        self._stages, self._buckets, self._messages = stages, buckets, messages
        self._values: dict[int, Any] = {}
        self.times: list[tuple[int, float, float]] = []
        self._begin(Batch([], [], [], [], True), 1.0)

    def _begin(self, batch: Batch, loss_scale: float) -> None:
        self._batch, self._loss_scale = batch, loss_scale
        self._values.clear()
        self._messages.begin(batch.signatures, batch.is_described)
        self.losses: list[torch.Tensor] = []
        self.outputs: dict[int, Any] = {}
        self.failure: Exception | None = None
        self.is_failed = False
        for stage in self._stages.values():
            stage.auxiliary.begin(batch.auxiliary)

    def step(self, batch: Batch, loss_scale: float, agree: Callable[[], bool]) -> bool:
        """A whole step. Gradients are those of the losses times `loss_scale`.

        `agree` says whether to update, which without the barrier has been done by then. Returns what it said.
        """
        self._begin(batch, loss_scale)
        self.times = []
        for stage in self._stages.values():
            stage.versions.begin()
        start, is_agreed = time.perf_counter(), True
        starts: dict[int, tuple[int, float]] = {}
        for index, instruction in enumerate(self._row):
            what = instruction["do"]
            if what == "run":
                eaten = [[self._take(token) for token in op["eats"]] for op in instruction["ops"]]
                begun = time.perf_counter() - start
                for op, values in zip(instruction["ops"], eaten):
                    self._try(op, values, self._run)
                self.times.append((index, begun, time.perf_counter() - start))
            elif what == "send":
                self._messages.send(instruction["token"], instruction["to"], self._values.pop(instruction["token"]))
            elif what == "recv":
                self._recv(instruction)
            elif what == "reduce":
                bucket = instruction["bucket"]
                starts[bucket] = index, time.perf_counter() - start
                for number in self._stages_of[bucket]:
                    self._stages[number].versions.place(self._updates[bucket])
                try:
                    self._buckets[bucket].start()
                except Exception as error:
                    self.fail(error)
            elif what == "await":
                self._buckets[instruction["bucket"]].wait()
                self.times.append((*starts[instruction["bucket"]], time.perf_counter() - start))
            elif what == "agree":
                is_agreed = agree()
            elif what == "step" and is_agreed and not self.is_failed:
                begun = time.perf_counter() - start
                self._buckets[instruction["bucket"]].update(keeps_norm=not self._has_barrier)
                for number in self._stages_of[instruction["bucket"]]:
                    self._stages[number].versions.updated()
                self.times.append((index, begun, time.perf_counter() - start))
        self._messages.end()
        self._values.clear()
        return is_agreed

    def evaluate(self, batch: Batch, has_loss: bool, keeps_outputs: bool) -> None:
        """The forwards alone."""
        self._begin(batch, 1.0)
        for instruction in self._row:
            if instruction["do"] == "run":
                for op in instruction["ops"]:
                    if op["kind"] == "F":
                        eaten = [self._take(token) for token in op["eats"]]
                        self._try(op, eaten, lambda op, eaten: self._evaluate(op, eaten, has_loss, keeps_outputs))
            elif instruction["do"] in ("send", "recv") and self._tokens[instruction["token"]]["kind"] == "activation":
                if instruction["do"] == "send":
                    self._messages.send(instruction["token"], instruction["to"], self._values.pop(instruction["token"]))
                else:
                    self._recv(instruction)
        self._messages.end()
        self._values.clear()

    def fail(self, error: Exception) -> None:
        """Computes nothing more in this step, because of an error on this rank."""
        if self.failure is None:
            self.failure = error
        self.is_failed = True

    def _recv(self, instruction: dict[str, Any]) -> None:
        try:
            self._values[instruction["token"]] = self._messages.recv(instruction["token"], instruction["from"])
        except Failed:
            self._values[instruction["token"]] = None
            self.is_failed = True

    def _take(self, token: int) -> Any:
        value = self._values.pop(token, None)
        return value.wait() if isinstance(value, Coming) else value

    def _try(self, op: dict[str, Any], eaten: list[Any], run: Callable[[dict[str, Any], list[Any]], None]) -> None:
        """Runs an op unless this rank has failed: then it makes nothing."""
        if not self.is_failed:
            try:
                return run(op, eaten)
            except Exception as error:
                self.fail(error)
        self._values.update(dict.fromkeys(op["makes"]))
        if op["kind"] == "F" and op["stage"] != self._last:
            for unit in op["units"]:
                self._messages.made(op["pipe"], op["stage"], unit, None)

    def _run(self, op: dict[str, Any], eaten: list[Any]) -> None:
        eats = [(self._tokens[token], value) for token, value in zip(op["eats"], eaten)]
        stage = self._stages[op["stage"]]
        made: dict[tuple[str, int], Any] = {}

        def by_kind(kind: str) -> dict[int, Any]:
            return {about["units"][0]: value for about, value in eats if about["kind"] == kind}

        if op["kind"] == "F":
            made = self._forward(op, stage, next(iter(by_kind("activation").values()), None))
        elif op["kind"] == "R":
            made = {("saved", unit): stage.recompute(kept) for unit, kept in by_kind("kept").items()}
        elif op["kind"] in ("B", "I"):
            grads = by_kind("gradient")
            for unit, saved in by_kind("saved").items():
                update = unit // self._units_per_update
                if op["kind"] == "B":
                    dx = stage.backward(saved, grads[unit][0], update)
                else:
                    dx, made["deferred", unit] = stage.backward_input(saved, grads[unit][0], update)
                made["gradient", unit] = [dx]
        else:
            for add_weight_gradients in by_kind("deferred").values():
                add_weight_gradients()
        for token in op["makes"]:
            about = self._tokens[token]
            # A version of the weights is within what its forward saves.
            is_version = about["kind"] in ("version", "recomputed-version")
            self._values[token] = None if is_version else made[about["kind"], about["units"][0]]

    def _forward(self, op: dict[str, Any], stage: Stage, activation: list[Value] | None) -> dict[tuple[str, int], Any]:
        made: dict[tuple[str, int], Any] = {}
        outputs = []
        is_kept = any(self._tokens[token]["kind"] == "kept" for token in op["makes"])
        for i, number in enumerate(op["units"]):
            unit = self._unit(activation, i, number, op["stage"])
            weights = stage.versions.read(number // self._units_per_update)
            output, rest = (stage.keep if is_kept else stage.save)(unit, weights)
            made["kept" if is_kept else "saved", number] = rest
            if op["stage"] == self._last:
                self.losses += output.tensors
                made["gradient", number] = [[torch.full_like(output.tensors[0], self._loss_scale)]]
            else:
                self._messages.made(op["pipe"], op["stage"], number, output)
                outputs.append(output)
        made["activation", op["units"][0]] = outputs
        return made

    def _evaluate(self, op: dict[str, Any], eaten: list[Any], has_loss: bool, keeps_outputs: bool) -> None:
        stage, outputs = self._stages[op["stage"]], []
        for i, number in enumerate(op["units"]):
            unit = self._unit(eaten[0] if eaten else None, i, number, op["stage"])
            output = stage.forward(unit)
            if op["stage"] != self._last:
                tensors, around = stage.made(output)
                outputs.append(Value(tensors, around, (False,) * len(tensors)))
                self._messages.made(op["pipe"], op["stage"], number, outputs[-1])
                continue
            if has_loss:
                self.losses.append(stage.loss(output, unit.target))
            if keeps_outputs:
                self.outputs[number] = output
        for token in op["makes"]:
            self._values[token] = outputs if self._tokens[token]["kind"] == "activation" else None

    def _unit(self, activation: list[Value] | None, i: int, number: int, stage: int) -> Unit:
        batch = self._batch
        handed = batch.handed[number] if activation is None else activation[i]
        target = batch.targets[number] if stage == self._last and batch.targets else None
        return Unit(handed, batch.keywords[number], target, batch.signatures[number])
