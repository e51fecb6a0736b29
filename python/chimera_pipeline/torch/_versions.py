"""Versions of a stage's weights, where they may change between a forward and its backward."""

from __future__ import annotations

from typing import Dict

import torch

Weights = Dict[str, torch.Tensor]


class Versions:
    """Which weights a forward reads. With a flush that are the module's own, which have no name here.

    `stash` reads the newest version, `double-buffer` the one that `u - 1` updates made, for the update u.
    """

    def __init__(self, module: torch.nn.Module, rule: str) -> None:
        self._module, self._rule = module, rule
        self._by_updates: dict[int, Weights] = {}
        self._sums: dict[int, Weights] = {}
        self.begin()

    def begin(self) -> None:
        """Begins a window with the module's weights."""
        self._n_updates = 0
        self._by_updates = {0: self._copy()}

    def _copy(self) -> Weights:
        if self._rule == "flush":
            return {}
        trained = ((name, p) for name, p in self._module.named_parameters() if p.requires_grad)
        return {name: p.detach().clone().requires_grad_() for name, p in trained}

    def read(self, update: int) -> Weights:
        """The weights of a forward whose gradients go into an update."""
        return self._by_updates[max(update - 1, 0) if self._rule == "double-buffer" else self._n_updates]

    def collect(self, weights: Weights, update: int) -> None:
        """Adds gradients of a version to those of an update."""
        sums = self._sums.setdefault(update, {})
        for name, leaf in weights.items():
            if leaf.grad is not None:
                sums[name] = sums[name] + leaf.grad if name in sums else leaf.grad
                leaf.grad = None

    def place(self, update: int) -> None:
        """Gives the module the gradients of an update, and takes those of the last one away."""
        if self._rule == "flush":
            return
        sums = self._sums.pop(update, {})
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad:
                parameter.grad = sums.get(name)

    def updated(self) -> None:
        """Takes the module's weights as the next version."""
        if self._rule != "flush":
            self._n_updates += 1
            self._by_updates[self._n_updates] = self._copy()
            self._by_updates.pop(self._n_updates - 2, None)
