"""Autograd's graphs."""

from collections.abc import Iterable
from typing import Any

import torch


def nodes_of(tensors: Iterable[torch.Tensor]) -> set[Any]:
    """All nodes of the graph that a backward pass from these tensors visits."""
    # A root may be an edge of the graph in place of a tensor.
    return nodes_from(getattr(tensor, "grad_fn", None) or
                      getattr(tensor, "node", None) for tensor in tensors)


def nodes_from(nodes: Iterable[Any]) -> set[Any]:
    """The same from nodes, some of which may be None."""
    seen: set[Any] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
    return seen


def nodes_before(tensors: Iterable[torch.Tensor],
                 leaves: Iterable[torch.Tensor]) -> set[Any]:
    """Those from which a backward pass reaches one of the leaves."""
    wanted = {id(leaf) for leaf in leaves}
    users: dict[Any, list[Any]] = {}
    todo = []
    for node in nodes_of(tensors):
        for following, _ in node.next_functions:
            users.setdefault(following, []).append(node)
        if id(getattr(node, "variable", None)) in wanted:
            todo.append(node)
    found: set[Any] = set()
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += users.get(node, [])
    return found


def leaves_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors whose `grad` a backward pass from this one adds to."""
    return [node.variable for node in nodes_of([tensor])
            if hasattr(node, "variable")]


def has_functions(tensor: torch.Tensor) -> bool:
    """Whether functions in Python, other than this package's, are visited."""
    kinds = (getattr(type(node), "_forward_cls", None)
             for node in nodes_of([tensor]))
    return any(kind is not None and not kind.__module__.startswith("cohort.")
               for kind in kinds)


def has_indices(node: Any) -> bool:
    """Whether it chooses entries, by samples for instance."""
    return any(hasattr(node, f"_raw_saved_{name}")
               for name in ("index", "indices", "mask", "condition"))


def signed(dimension: int) -> int:
    """A dimension that a node saves, which may lack its sign."""
    return dimension - (1 << 64) if dimension >= 1 << 63 else dimension


# The prefix of values that a node keeps, without a look at them.
_RAW = "_raw_saved_"


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Saved:
    """What nodes of torch's keep for their derivatives. Each can be looked at once,
    and is remembered here."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, str], Any] = {}
        self._hooked: set[Any] = set()

    def of(self, node: Any, name: str) -> Any:
        """A tensor, or several. None: nothing, or another object has looked at it, or
        hooks would make it, such as those of activation checkpointing, which would
        compute and meet again."""
        if (node, name) not in self._found:
            self._found[node, name] = self._look(node, name)
        return self._found[node, name]

    def has_hooks(self, node: Any) -> bool:
        """Whether hooks make what a node keeps."""
        for name in dir(node):
            if name.startswith(_RAW):
                self.of(node, name.removeprefix(_RAW))
        return node in self._hooked

    def _look(self, node: Any, name: str) -> Any:
        raw = getattr(node, _RAW + name, None)
        try:
            for one in raw if isinstance(raw, (tuple, list)) else [raw]:
                # Only one that has no hooks yet takes any.
                one.register_hooks(_same, _same)
            return getattr(node, f"_saved_{name}")
        except AttributeError:
            return None
        except RuntimeError as error:
            if "value None" not in str(error):
                self._hooked.add(node)
            return None
