"""The two halves of a backward, without computing anything twice.

From the outputs of a stage, autograd's graph leads to its inputs and to its parameters. The nodes from which an input can
be reached are the *spine*. The gradients of the inputs need the spine alone. A spine node with an edge that leaves the
spine towards a parameter is a *source*: the gradient that arrives there is kept, and with it the weight half begins.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

import torch
from torch.autograd.graph import GradientEdge, Node

Pairs = List[Tuple[torch.Tensor, torch.Tensor]]
"""Outputs, each with its gradient."""


def backward(outputs: Pairs, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Adds the gradients of all parameters; returns those of the inputs, all of which need one."""
    pairs = _needed(outputs)
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])
    return [_input_gradient(x) for x in inputs]


def backward_input(
    outputs: Pairs, inputs: Sequence[torch.Tensor], parameters: Iterable[torch.Tensor]
) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """Returns the gradients of the inputs, all of which need one, and what adds the gradients of the parameters later."""

    def add_all() -> None:
        backward(outputs, inputs)

    if not inputs:
        return [], add_all
    pairs = _needed(outputs)
    ends = {_accumulator(x) for x in inputs}
    leaves = {_accumulator(p): p for p in parameters if p.requires_grad}
    roots = [output.grad_fn for output, _ in pairs if output.grad_fn is not None]
    spine, sources = _sources(roots, ends, leaves)
    # An output that is an input has no graph to follow, and one beside the spine leads to parameters alone.
    on = [(output, grad) for output, grad in pairs if (output.grad_fn or _accumulator(output)) in spine | ends]
    beside = [(output, grad) for output, grad in pairs if (output.grad_fn or _accumulator(output)) not in spine | ends]
    if not on:
        return [torch.zeros_like(x) for x in inputs], add_all
    arrived: dict[Node, tuple[torch.Tensor | None, ...]] = {}

    def keep(source: Node) -> Callable[..., None]:
        def hook(grads: tuple[torch.Tensor | None, ...]) -> None:
            arrived[source] = tuple(grads)

        return hook

    hooks = [source.register_prehook(keep(source)) for source in sources]
    try:
        made = torch.autograd.grad(**_lists(on), inputs=inputs, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()

    def add_weight_gradients() -> None:
        total: dict[torch.Tensor, torch.Tensor] = {}

        def add(parameters: Sequence[torch.Tensor], parts: Sequence[torch.Tensor | None]) -> None:
            for parameter, part in zip(parameters, parts):
                if part is not None:
                    total[parameter] = total[parameter] + part if parameter in total else part

        for source, (reached, on_spine) in sources.items():
            if source in arrived:
                of_source = [leaves[leaf] for leaf in reached]
                add(of_source, _gradients_from(source, arrived.pop(source), of_source, on_spine))
        if beside and leaves:
            everyone = list(leaves.values())
            add(everyone, torch.autograd.grad(**_lists(beside), inputs=everyone, retain_graph=True, allow_unused=True))
        for parameter, grad in total.items():
            _accumulate(parameter, grad)

    return [torch.zeros_like(x) if dx is None else dx for x, dx in zip(inputs, made)], add_weight_gradients


def _needed(outputs: Pairs) -> Pairs:
    return [(output, grad) for output, grad in outputs if output.requires_grad]


def _lists(pairs: Pairs) -> dict[str, Any]:
    return {"outputs": [output for output, _ in pairs], "grad_outputs": [grad for _, grad in pairs]}


def _input_gradient(x: torch.Tensor) -> torch.Tensor:
    grad, x.grad = x.grad, None
    return torch.zeros_like(x) if grad is None else grad


def _accumulator(leaf: torch.Tensor) -> Node:
    """The node that adds to the gradient of a leaf."""
    view = leaf.view_as(leaf).grad_fn
    node = view.next_functions[0][0] if view is not None else None
    assert node is not None, "a leaf that requires a gradient has an accumulator"
    return node


Sources = Dict[Node, Tuple[List[Node], List[Node]]]
"""The sources, each with the leaves off the spine and the spine nodes behind it."""


def _sources(roots: Sequence[Node], ends: set[Node], leaves: dict[Node, torch.Tensor]) -> tuple[set[Node], Sources]:
    """The spine between `roots` and `ends`, and its sources."""
    children: dict[Node, list[Node]] = {}
    order: list[Node] = []
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in children:
            children[node] = [child for child, _ in node.next_functions if child is not None]
            stack.append((node, True))
            stack.extend((child, False) for child in children[node])
    # Children come before their parents.
    spine: set[Node] = set()
    behind: dict[Node, set[Node]] = {}
    for node in order:
        if node in ends or any(child in spine for child in children[node]):
            spine.add(node)
        else:
            behind[node] = set().union(*(behind[child] for child in children[node]), {node} & leaves.keys())
    sources: Sources = {}
    for node in reversed(order):
        if node in spine:
            off = [child for child in children[node] if child not in spine]
            reached = set().union(*(behind[child] for child in off))
            if reached:
                on = [child for child in children[node] if child in spine and child not in ends]
                sources[node] = ([leaf for leaf in leaves if leaf in reached], on)
    return spine, sources


def _gradients_from(
    source: Node, grads: tuple[torch.Tensor | None, ...], parameters: list[torch.Tensor], spine: list[Node]
) -> Sequence[torch.Tensor | None]:
    """The gradients of `parameters` that come from `source` without the spine behind it, which has its own."""

    def nothing(arriving: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if grad is None else torch.zeros_like(grad) for grad in arriving)

    edges = [(GradientEdge(source, i), grad) for i, grad in enumerate(grads) if grad is not None]
    if not edges:
        return [None] * len(parameters)
    # Only where a parameter is behind the spine too does anything arrive there.
    hooks = [node.register_prehook(nothing) for node in spine]
    try:
        made: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [edge for edge, _ in edges], parameters, [grad for _, grad in edges], retain_graph=True, allow_unused=True
        )
        return made
    finally:
        for hook in hooks:
            hook.remove()


def _accumulate(parameter: torch.Tensor, grad: torch.Tensor) -> None:
    """Adds to the gradient of a parameter, as autograd's own accumulation does, hooks behind it included."""
    with torch.no_grad():
        if parameter.grad is None:
            # Autograd may hand one tensor to several parameters and to the input, and gradients are scaled in place.
            parameter.grad = grad.clone(memory_format=torch.contiguous_format) if grad.layout == torch.strided else grad.clone()
        else:
            parameter.grad += grad
    for hook in tuple((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()):
        hook(parameter)
