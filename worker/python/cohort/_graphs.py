"""Autograd's graphs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch


def inputs_of(node: Any) -> list[Any]:
    """The nodes that a node's inputs come from; None: an input has no history."""
    return [other for other, _ in node.next_functions]


def first_inputs(node: Any) -> Iterator[Any]:
    """The node of a node's first input, that of this one's, and so on."""
    while node.next_functions and (node := node.next_functions[0][0]) is not None:
        yield node


def walk(nodes: Iterable[Any],
         following: Callable[[Any], Iterable[Any]] = inputs_of) -> Iterator[Any]:
    """Each of the nodes once, those that follow them, and so on; some may be None."""
    seen: set[Any] = {None}
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        todo += following(node)


def nodes_of(tensors: Iterable[torch.Tensor]) -> set[Any]:
    """All nodes of the graph that a backward pass from these tensors visits."""
    # A root may be an edge of the graph in place of a tensor.
    return set(walk(getattr(tensor, "grad_fn", None) or
                    getattr(tensor, "node", None) for tensor in tensors))


def nodes_before(tensors: Iterable[torch.Tensor],
                 leaves: Iterable[torch.Tensor]) -> set[Any]:
    """Those from which a backward pass reaches one of the leaves."""
    wanted = {id(leaf) for leaf in leaves}
    users: dict[Any, list[Any]] = {}
    last = []
    for node in nodes_of(tensors):
        for following in inputs_of(node):
            users.setdefault(following, []).append(node)
        if id(getattr(node, "variable", None)) in wanted:
            last.append(node)
    return set(walk(last, lambda node: users.get(node, [])))


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

    def shape_of(self, node: Any, name: str) -> Sequence[int]:
        """That of a tensor that a node keeps, or whose sizes it keeps; empty: neither."""
        for attribute in (f"_saved_{name}_sym_sizes", f"_saved_{name}_sizes"):
            if hasattr(node, attribute):
                shape: Sequence[int] = getattr(node, attribute)
                return shape
        one = self.of(node, name)
        return () if one is None else tuple(one.shape)

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
