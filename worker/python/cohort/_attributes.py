"""Plain attributes of modules, such as a counter or a hidden state, which a body that is
repeated would change twice."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

_ABSENT = object()
# Attributes that torch gives each module, such as its mode and its hooks.
_OF_TORCH = frozenset(vars(nn.Module()))


class Attributes:
    """What modules have had in their attributes when a body began.

    Args:
        modules: those that a body may change.
    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        self._modules = modules
        self._noted: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def note(self) -> None:
        """The body of a step begins."""
        self._noted = [(vars(module), dict(vars(module)))
                       for module in self._modules()]

    def put_back(self) -> None:
        """The same body begins again. What an attribute refers to is not copied: a list
        or tensor that was changed in place stays so."""
        for now, before in self._noted:
            for name in now.keys() - before.keys():
                del now[name]
            for name, value in before.items():
                if name not in _OF_TORCH and now.get(name, _ABSENT) is not value:
                    now[name] = value
