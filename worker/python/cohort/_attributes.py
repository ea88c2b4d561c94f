"""Plain attributes of modules, such as a counter or a hidden state, which a body that is
repeated would change twice, and which a replacement of this process would not have."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

_ABSENT = object()
# Attributes that torch gives each module, such as its mode and its hooks.
_OF_TORCH = frozenset(vars(nn.Module()))
# Numbers in the state of a version.
_NUMBERS_MAX = 256


class Attributes:
    """The attributes that modules had when a body began, and the numbers among
    them that bodies change, which a version has as it has rates.

    Args:
        named: the model's modules, and those that are kept, by name.
        beside: other modules that a body may change.
    """

    def __init__(self, named: Callable[[], Mapping[str, nn.Module]],
                 beside: Callable[[], Iterable[nn.Module]]) -> None:
        self._named = named
        self._beside = beside
        self._noted: list[tuple[dict[str, Any], dict[str, Any]]] = []
        # By module and attribute: as a body has left them. None: one changes
        # elsewhere, too.
        self._numbers: dict[tuple[str, str], float | None] = {}

    def note(self) -> None:
        """The body of a step begins."""
        self._noted = [(vars(module), dict(vars(module)))
                       for module in (*self._named().values(), *self._beside())]

    def put_back(self) -> None:
        """The same body begins again. What an attribute refers to is not copied: a list
        or tensor that was changed in place stays so."""
        for now, before in self._noted:
            for name in now.keys() - before.keys():
                del now[name]
            for name, value in before.items():
                if name not in _OF_TORCH and now.get(name, _ABSENT) is not value:
                    now[name] = value

    def end(self) -> None:
        """The body has computed its step."""
        for name, (now, before) in zip(self._named(), self._noted):
            for key, value in now.items():
                if type(value) in (int, float) and before.get(key, _ABSENT) is not value and (
                        self._numbers.get((name, key), 0) is not None and
                        len(self._numbers) < _NUMBERS_MAX):
                    self._numbers[name, key] = value

    def save(self) -> list[tuple[str, str, float]]:
        """The numbers, for the server."""
        modules = self._named()
        for (name, key), number in self._numbers.items():
            if name not in modules or vars(modules[name]).get(key) != number:
                self._numbers[name, key] = None
        return [(*name, number) for name, number in self._numbers.items()
                if number is not None]

    def load(self, saved: Iterable[tuple[str, str, float]]) -> None:
        """Goes on to what `save` has returned."""
        modules = self._named()
        for name, key, number in saved:
            if name in modules:
                vars(modules[name])[key] = number
                self._numbers[name, key] = number
