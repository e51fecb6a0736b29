"""A model that PyTorch's `pipeline()` has cut at its `SplitPoint`s."""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List

import torch.fx
from torch import nn

from .. import Error
from ._parts import copied
from ._pieces import Pieces, tied_names


class PipePieces(Pieces):
    """The stages of a `Pipe`, each of which hands on all that later ones take."""

    def __init__(self, pipe: Any, model: nn.Module) -> None:
        self.model, self.n_stages = model, pipe.num_stages
        nodes = list(pipe.split_gm.graph.nodes)
        self._calls = [node for node in nodes if node.op == "call_module"]
        others = [n for n in nodes if n.op not in ("placeholder", "call_module", "output") and n.target is not operator.getitem]
        if others or len(self._calls) != self.n_stages:
            between = others[0].name if others else f"{len(self._calls)} calls of {self.n_stages} stages"
            raise Error(f"the pipe computes `{between}` between its stages: move the split points, or cut the model by `cut`")
        self._nodes, self._output = nodes, nodes[-1].args[0]
        self._live = [self._needed_after(call) for call in self._calls]
        self._modules = [_cleaned(pipe.get_stage_module(stage)) for stage in range(self.n_stages)]
        self.tied = self._tie()

    def stages(self, stage: int) -> nn.Module:
        """The module of a stage."""
        made = copied(self._modules[stage])
        made.__dict__["forward"] = self._forward(stage, made.forward)
        return made

    def _needed_after(self, call: torch.fx.Node) -> List[torch.fx.Node]:
        """The values that are there after the stage of a call, and that later ones take."""
        next_call = next((node for node in self._calls if node > call), self._nodes[-1])
        before = [node for node in self._nodes if node < next_call]
        return [node for node in before if any(not user < next_call for user in node.users)]

    def _forward(self, stage: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        call = self._calls[stage]
        inputs = [node for node in self._nodes if node.op == "placeholder"]

        def forward(*handed: Any, **batch: Any) -> Any:
            if stage:
                values: Dict[torch.fx.Node, Any] = dict(zip(self._live[stage - 1], handed))
            else:
                values = dict(zip(inputs, handed))
                values |= {node: batch[node.name] for node in inputs if node.name in batch}
                missing = [node.name for node in inputs if node not in values and node.users]
                if missing:
                    raise Error(f"the pipe was made with the input `{missing[0]}`, and the batch has none")
            taken = torch.fx.map_arg((call.args, call.kwargs), values.__getitem__)
            values[call] = inner(*taken[0], **taken[1])
            for node in call.users:
                if node.target is operator.getitem:
                    values[node] = values[call][node.args[1]]
            if stage + 1 < self.n_stages:
                return tuple(values[node] for node in self._live[stage])
            output = torch.fx.map_arg(self._output, values.__getitem__)
            return output[0] if isinstance(output, tuple) and len(output) == 1 else output

        return forward

    def _tie(self) -> Any:
        """Makes one of parameters that were one in the model, and returns those that several stages have."""
        keys = {name: id(p) for name, p in self.model.named_parameters(remove_duplicate=False)}
        for module in self._modules:
            own: Dict[int, nn.Parameter] = {}
            for name, parameter in list(module.named_parameters(remove_duplicate=False)):
                parent, _, last = name.rpartition(".")
                module.get_submodule(parent)._parameters[last] = own.setdefault(keys.get(name, id(parameter)), parameter)
        return tied_names([{n: keys.get(n, id(p)) for n, p in module.named_parameters()} for module in self._modules])


def _cleaned(module: Any) -> nn.Module:
    """The module without what its graph does not use, which PyTorch leaves where a parameter has two names."""
    made: Any = copied(module)
    made.delete_all_unused_submodules()
    cleaned: nn.Module = made
    return cleaned


def from_pipe(pipe: Any, model: nn.Module) -> Pieces:
    """The stages of a `Pipe` of `torch.distributed.pipelining.pipeline(model, …)`, for `train` or `Runtime`.

    `model` is that of which the pipe was made: it says which parameters are tied.
    """
    if not hasattr(pipe, "split_gm") or not hasattr(pipe, "get_stage_module"):
        raise Error(f"`pipe` is a {type(pipe).__name__}: give what torch.distributed.pipelining.pipeline returns")
    return PipePieces(pipe, model)
