"""Carries out the row of one worker. It knows no schedule: each op says what it eats and makes."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from ._messages import Coming, Messages
from ._reductions import Updated
from ._stage import Stage


class Executor:
    """One worker's row, step after step."""

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
        self._begin([], [], 1.0)

    def _begin(self, x: list[Any], targets: list[Any], loss_scale: float) -> None:
        self._x, self._targets, self._loss_scale = x, targets, loss_scale
        self._values.clear()
        self._messages.begin()
        self.losses: list[torch.Tensor] = []

    def step(self, x: list[Any], targets: list[Any], loss_scale: float, agree: Callable[[], bool]) -> bool:
        """A whole step. Gradients are those of the losses times `loss_scale`.

        `agree` says whether to update, which without the barrier has been done by then. Returns what it said.
        """
        self._begin(x, targets, loss_scale)
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
                    self._run(op, values)
                self.times.append((index, begun, time.perf_counter() - start))
            elif what == "send":
                value = self._values.pop(instruction["token"])
                self._messages.send(instruction["token"], instruction["to"], value)
            elif what == "recv":
                self._values[instruction["token"]] = self._messages.recv(instruction["token"], instruction["from"])
            elif what == "reduce":
                bucket = instruction["bucket"]
                starts[bucket] = index, time.perf_counter() - start
                for stage in self._stages_of[bucket]:
                    self._stages[stage].versions.place(self._updates[bucket])
                self._buckets[bucket].start()
            elif what == "await":
                self._buckets[instruction["bucket"]].wait()
                self.times.append((*starts[instruction["bucket"]], time.perf_counter() - start))
            elif what == "agree":
                is_agreed = agree()
            elif what == "step" and is_agreed:
                begun = time.perf_counter() - start
                self._buckets[instruction["bucket"]].update(keeps_norm=not self._has_barrier)
                for stage in self._stages_of[instruction["bucket"]]:
                    self._stages[stage].versions.updated()
                self.times.append((index, begun, time.perf_counter() - start))
        self._messages.end()
        return is_agreed

    def evaluate(self, x: list[Any], targets: list[Any]) -> None:
        """The forwards alone."""
        self._begin(x, targets, 1.0)
        for instruction in self._row:
            if instruction["do"] == "run":
                for op in instruction["ops"]:
                    if op["kind"] == "F":
                        self._evaluate(op)
            elif instruction["do"] in ("send", "recv"):
                token = instruction["token"]
                if self._tokens[token]["kind"] == "activation":
                    if instruction["do"] == "send":
                        self._messages.send(token, instruction["to"], self._values.pop(token))
                    else:
                        self._values[token] = self._messages.recv(token, instruction["from"])
        self._messages.end()

    def _take(self, token: int) -> Any:
        value = self._values.pop(token)
        return value.wait() if isinstance(value, Coming) else value

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

    def _forward(self, op: dict[str, Any], stage: Stage, activation: list[torch.Tensor] | None) -> dict[tuple[str, int], Any]:
        made: dict[tuple[str, int], Any] = {}
        outputs = []
        is_kept = any(self._tokens[token]["kind"] == "kept" for token in op["makes"])
        for i, unit in enumerate(op["units"]):
            x, target = self._of_unit(activation, i, unit, op["stage"])
            weights = stage.versions.read(unit // self._units_per_update)
            output, rest = (stage.keep if is_kept else stage.save)(x, target, weights)
            made["kept" if is_kept else "saved", unit] = rest
            if op["stage"] == self._last:
                self.losses.append(output)
                made["gradient", unit] = [torch.full_like(output, self._loss_scale)]
            else:
                self._messages.made(op["pipe"], op["stage"], output)
                outputs.append(output)
        made["activation", op["units"][0]] = outputs
        return made

    def _evaluate(self, op: dict[str, Any]) -> None:
        eaten = [self._take(token) for token in op["eats"]]
        outputs = []
        for i, unit in enumerate(op["units"]):
            x, target = self._of_unit(eaten[0] if eaten else None, i, unit, op["stage"])
            outputs.append(self._stages[op["stage"]].forward(x, target))
        if op["stage"] == self._last:
            self.losses += outputs
        for token in op["makes"]:
            if self._tokens[token]["kind"] == "activation":
                self._values[token] = outputs

    def _of_unit(self, activation: list[torch.Tensor] | None, i: int, unit: int, stage: int) -> tuple[Any, Any]:
        x = self._x[unit] if activation is None else activation[i]
        return x, self._targets[unit] if stage == self._last else None
