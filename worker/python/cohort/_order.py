"""The order in which autograd visits nodes.

Of the nodes that are ready it takes the one that was made last, by their numbers. So all
workers meet in one order, which must not change. But what does not meet may come later,
by the number of an older node."""

from typing import Any

import torch

# The entry of a node's metadata for nodes that are to come before those behind it.
_NUMBER = "cohort.number"


def _new_node() -> Any:
    return torch.zeros((), requires_grad=True).add(0).grad_fn


# Releases before 2.4 do not say whether a device has autocast.
can_move = hasattr(_new_node(), "_set_sequence_nr") and (
    hasattr(torch, "get_autocast_dtype"))


def new_number() -> int:
    """One between those of the nodes before and after this call."""
    number: int = _new_node()._sequence_nr()
    return number


def set_number_behind(node: Any, number: int) -> None:
    """Nodes with this number come after `node`, but before those behind it."""
    node.metadata[_NUMBER] = number


def number_behind(node: Any) -> int | None:
    """That number; None: there is none."""
    number: int | None = node.metadata.get(_NUMBER)
    return number


def move(output: torch.Tensor, number: int) -> None:
    """Gives the node of this tensor a number."""
    node: Any = output.grad_fn
    node._set_sequence_nr(number)
