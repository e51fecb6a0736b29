"""The two halves of a backward, without computing anything twice.

From the output of a stage, autograd's graph leads to its input and to its parameters. The nodes from which the input can
be reached are the *spine*. The gradient of the input needs the spine alone. A spine node with an edge that leaves the
spine towards a parameter is a *source*: the gradient that arrives there is kept, and with it the weight half begins.
"""

from __future__ import annotations

from typing import Callable, Iterable, Sequence

import torch
from torch.autograd.graph import GradientEdge, Node


def backward(output: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """Adds the gradients of all parameters; returns the gradient of the input."""
    if output.requires_grad:
        torch.autograd.backward([output], [grad])
    return _input_gradient(x)


def backward_input(
    output: torch.Tensor, grad: torch.Tensor, x: torch.Tensor, parameters: Iterable[torch.Tensor]
) -> tuple[torch.Tensor | None, Callable[[], None]]:
    """Returns the gradient of the input, and what adds the gradients of the parameters later."""

    def add_all() -> None:
        backward(output, grad, x)

    if not x.requires_grad:
        return None, add_all
    if output is x:
        # A leaf has no graph to follow: what arrives at it is its gradient.
        return grad, lambda: None
    leaves = {_accumulator(p): p for p in parameters if p.requires_grad}
    sources = None if output.grad_fn is None else _sources(output.grad_fn, _accumulator(x), leaves)
    if sources is None:
        return torch.zeros_like(x), add_all
    arrived: dict[Node, tuple[torch.Tensor | None, ...]] = {}

    def keep(source: Node) -> Callable[..., None]:
        def hook(grads: tuple[torch.Tensor | None, ...]) -> None:
            arrived[source] = tuple(grads)

        return hook

    hooks = [source.register_prehook(keep(source)) for source in sources]
    try:
        (dx,) = torch.autograd.grad([output], [x], [grad], retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()

    def add_weight_gradients() -> None:
        made: dict[torch.Tensor, torch.Tensor] = {}
        for source, (reached, spine) in sources.items():
            if source in arrived:
                parameters = [leaves[leaf] for leaf in reached]
                for parameter, part in zip(parameters, _gradients_from(source, arrived.pop(source), parameters, spine)):
                    if part is not None:
                        made[parameter] = made[parameter] + part if parameter in made else part
        for parameter, total in made.items():
            _accumulate(parameter, total)

    return (torch.zeros_like(x) if dx is None else dx), add_weight_gradients


def _input_gradient(x: torch.Tensor) -> torch.Tensor | None:
    if not x.requires_grad:
        return None
    grad, x.grad = x.grad, None
    return torch.zeros_like(x) if grad is None else grad


def _accumulator(leaf: torch.Tensor) -> Node:
    """The node that adds to the gradient of a leaf."""
    view = leaf.view_as(leaf).grad_fn
    node = view.next_functions[0][0] if view is not None else None
    assert node is not None, "a leaf that requires a gradient has an accumulator"
    return node


def _sources(
    root: Node, end: Node, leaves: dict[Node, torch.Tensor]
) -> dict[Node, tuple[list[Node], list[Node]]] | None:
    """The sources between `root` and `end`, each with the leaves off the spine and the spine nodes behind it.

    None if there is no spine: then all gradients are those of leaves.
    """
    children: dict[Node, list[Node]] = {}
    order: list[Node] = []
    stack: list[tuple[Node, bool]] = [(root, False)]
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
        if node is end or any(child in spine for child in children[node]):
            spine.add(node)
        else:
            behind[node] = set().union(*(behind[child] for child in children[node]), {node} & leaves.keys())
    if root not in spine:
        return None
    sources: dict[Node, tuple[list[Node], list[Node]]] = {}
    for node in reversed(order):
        if node in spine:
            off = [child for child in children[node] if child not in spine]
            reached = set().union(*(behind[child] for child in off))
            if reached:
                on = [child for child in children[node] if child in spine and child is not end]
                sources[node] = ([leaf for leaf in leaves if leaf in reached], on)
    return sources


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
