"""Plain attributes of modules, such as a counter or a hidden state, which a body that is
repeated would change twice, and which a replacement of this process would not have."""

import contextlib
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from cohort import _errors

_ABSENT = object()
# Attributes that torch gives each module, such as its mode and its hooks.
_OF_TORCH = frozenset(vars(nn.Module()))
# Numbers in the state of a version.
_NUMBERS_MAX = 1000

# The attributes of a module, and what they were.
_Noted = list[tuple[dict[str, Any], dict[str, Any]]]


def _note(modules: Iterable[nn.Module]) -> _Noted:
    return [(vars(module), dict(vars(module))) for module in modules]


def _put_back(noted: _Noted) -> None:
    """What an attribute refers to is not copied: a list or tensor that was changed in
    place stays so."""
    for now, before in noted:
        for name in now.keys() - before.keys():
            del now[name]
        for name, value in before.items():
            if name not in _OF_TORCH and now.get(name, _ABSENT) is not value:
                now[name] = value


def _is_number(value: Any) -> bool:
    """Also one of NumPy."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Modes and attributes that passes of the body change are put back."""
    noted = _note(model.modules())
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        _put_back(noted)
        # Layers that the script keeps in eval mode stay there.
        for module, training in modes:
            module.training = training


def numbers_in(model: nn.Module) -> dict[str, Any]:
    """Those in attributes of its modules, by name."""
    return {f"{name}.{key}" if name else key: value
            for name, module in model.named_modules()
            for key, value in vars(module).items() if _is_number(value)}


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
        self._noted: _Noted = []
        # Modules and attributes.
        self._numbers: set[tuple[str, str]] = set()

    def note(self) -> None:
        """The body of a step begins."""
        self._noted = _note((*self._named().values(), *self._beside()))

    def put_back(self) -> None:
        """The same body begins again."""
        _put_back(self._noted)

    def end(self) -> None:
        """The body has computed its step."""
        for name, (now, before) in zip(self._named(), self._noted):
            self._numbers.update(
                (name, key) for key, value in now.items()
                if _is_number(value) and before.get(key, _ABSENT) is not value)

    def save(self) -> list[tuple[str, str, float]]:
        """The numbers, for the server. Raises UsageError if they are too many."""
        modules = self._named()
        saved = []
        for name, key in sorted(self._numbers):
            value: Any = vars(modules[name]).get(key) if name in modules else None
            if _is_number(value):
                whole = isinstance(value, numbers.Integral)
                saved.append((name, key, int(value) if whole else float(value)))
        if len(saved) > _NUMBERS_MAX:
            name, key, _ = saved[0]
            raise _errors.UsageError(
                f"job.step(): the loop's body changes {len(saved)} numbers in "
                f"attributes of modules, such as {key} of {name}, want at most "
                f"{_NUMBERS_MAX}; make them buffers (register_buffer)")
        return saved

    def load(self, saved: Iterable[tuple[str, str, float]]) -> None:
        """Continues from what `save` has returned."""
        modules = self._named()
        for name, key, number in saved:
            if name in modules:
                now = vars(modules[name])
                now[key] = _as_type_of(now.get(key), number)
                self._numbers.add((name, key))


def _as_type_of(value: Any, number: float) -> Any:
    """A number of the same type, if it is one of NumPy."""
    if not _is_number(value) or isinstance(value, (int, float)):
        return number
    same = type(value)(number)
    return same if same == number else number
