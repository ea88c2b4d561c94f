"""The last layers of a loss's graph, and passes to them."""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from cohort import _doors, _operator, _passes, _sums
from cohort._graphs import Saved, inputs_of, nodes_before, walk
from cohort._nodes import kind_of

# Layers whose output has samples, or parts of them, in its first dimension.
LAYERS = re.compile(r"(Addmm|Mm|Trilinear|Convolution|Embedding|EmbeddingBag)Backward\d")
# Nodes between a layer and its parameter, such as a transposition, at most.
_STEPS_TO_PARAMETER = 16
# Nodes among the last layers that second derivatives are taken through.
_NODES_BETWEEN_MAX = 100

# Derivatives by the outputs of layers, by node and number of the output.
Found = dict[tuple[Any, int], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A node with parameters.

    Attributes:
        node: autograd's.
        parameter: the smallest of it.
        inputs: numbers of the edges that do not lead to parameters.
    """
    node: Any
    parameter: nn.Parameter
    inputs: tuple[int, ...]


def is_of_script(node: Any) -> bool:
    """Whether it is a function in Python, of the script or of a compiler."""
    return hasattr(type(node), "_forward_cls") and not (
        _operator.is_call(node) or _sums.is_sum(node))


def layer_of(node: Any) -> Layer | None:
    if not _operator.is_call(node) and not LAYERS.fullmatch(kind_of(node)):
        return None
    at = [_parameter_at(other) for other in inputs_of(node)]
    parameters = [one for one in at if one is not None]
    # The left factor of a product has the rows. Samples may come as indices alone.
    if not parameters or kind_of(node).startswith("Mm") and at[0] is not None or (
            None not in at and not kind_of(node).startswith("Embedding")):
        return None
    return Layer(node, min(parameters, key=torch.Tensor.numel),
                 tuple(number for number, one in enumerate(at) if one is None))


def _parameter_at(node: Any) -> nn.Parameter | None:
    """A parameter, if a value is computed from parameters alone."""
    found = None
    todo = [node]
    for _ in range(_STEPS_TO_PARAMETER):
        if not todo:
            return found
        node = todo.pop()
        variable = getattr(node, "variable", None)
        if node is None or variable is not None and not isinstance(variable,
                                                                   nn.Parameter):
            return None
        found = variable if variable is not None else found
        todo += inputs_of(node)
    return None


class Top:
    """The part of a loss's graph above the last layers.

    Attributes:
        nodes: without the layers.
        layers: the last ones.
        near: these; of those that others are computed from, too, none if there is much
            between them, as second derivatives need memory for it.
    """

    def __init__(self, loss: torch.Tensor) -> None:
        self.nodes: set[Any] = set()
        self.layers: list[Layer] = []
        # The inputs of the layers, and of functions of the script.
        self._below: list[Any] = []
        seen: set[Any] = {None}
        todo = [loss.grad_fn]
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            if _sums.is_sum(node):
                continue
            following = inputs_of(node)
            layer = layer_of(node)
            if layer is not None:
                self.layers.append(layer)
                self._below += [following[number] for number in layer.inputs]
            elif is_of_script(node):
                self._below += following
            else:
                self.nodes.add(node)
                todo += following

        below = set(walk(self._below))
        self._used = {id(getattr(node, "variable", None)) for node in below}
        between = nodes_before(
            [loss], [layer.parameter for layer in self.layers]) - self.nodes
        self.near = (
            self.layers if len(between) <= _NODES_BETWEEN_MAX and
            not any(map(is_of_script, between)) else
            [layer for layer in self.layers if layer.node not in below and
             id(layer.parameter) not in self._used])

    def parameters(self) -> list[nn.Parameter]:
        """Those that have no layer, and are used here only."""
        variables = [getattr(node, "variable", None) for node in self.nodes]
        return [one for one in variables if isinstance(one, nn.Parameter) and
                id(one) not in self._used]

    def can_differentiate(self, saved: Saved, has_saved_hooks: bool) -> bool:
        """Whether a further pass to the near layers computes nothing again.

        Args:
            saved: what was looked at.
            has_saved_hooks: passes may compute again what some nodes keep, as with
                checkpoints.
        """
        return not (has_saved_hooks and any(map(saved.has_hooks, (
            *self.nodes, *(layer.node for layer in self.near)))))


def zeros(by_inputs: Any, _: Any) -> Any:
    """A hook that takes a node out of a pass."""
    return tuple(one if one is None else torch.zeros_like(one) for one in by_inputs)


class Pass:
    """Passes from a value to the outputs of layers, which do nothing else, and to
    parameters that have no layer."""

    def __init__(self, layers: Iterable[Layer], parameters: Iterable[nn.Parameter] = ()
                 ) -> None:
        self.found: Found = {}
        with_parameter = {layer.node: layer.parameter for layer in layers}
        self._parameters = [*with_parameter.values(), *parameters]
        self._hooks = [node.register_hook(functools.partial(self._note, node))
                       for node in with_parameter]

    def _note(self, node: Any, _: Any, gradients: Any) -> None:
        self.found.update({(node, number): gradient for number, gradient
                           in enumerate(gradients) if gradient is not None})

    def add_hook(self, node: Any, hook: Any) -> None:
        """Which may return other gradients of the node's inputs."""
        self._hooks.append(node.register_hook(hook))

    def run(self, value: torch.Tensor, create_graph: bool = False) -> Found:
        """The derivatives of a value."""
        self.found = {}
        if self._parameters:
            with _doors.passes_unseen(self._parameters), _passes.without_meetings():
                torch.autograd.grad(value, self._parameters, allow_unused=True,
                                    retain_graph=True, create_graph=create_graph)
        return self.found

    def __enter__(self) -> "Pass":
        return self

    def __exit__(self, *_: Any) -> None:
        for hook in self._hooks:
            hook.remove()
