"""The state of a scheduler as JSON has it."""

import copy
import itertools
import math
from typing import Any

import torch
from torch.optim import lr_scheduler

from cohort import _errors

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None  # type: ignore[assignment]

KINDS = tuple(getattr(lr_scheduler, name)
              for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau")
              if hasattr(lr_scheduler, name))


def save(scheduler: Any) -> Any:
    """The state of a scheduler, and of those that it has as attributes, without
    functions: these are the script's, and `load` leaves them as they are.

    Raises:
        ConfigurationError: it has other things than numbers and texts.
    """
    return _plain(scheduler.state_dict(), type(scheduler).__name__)


def load(scheduler: Any, values: Any) -> None:
    """Goes to a state of `save`."""
    scheduler.load_state_dict(_restored(values, scheduler.state_dict()))


def _plain(value: Any, path: str) -> Any:
    """`value` as JSON has it.

    Raises:
        ConfigurationError: it is no number, text, list or dictionary of such.
    """
    if isinstance(value, KINDS):
        return {"scheduler": save(value)}
    if callable(value):
        return {"function": ""}
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
        return {"numpy": [value.dtype.name, _plain(value.tolist(), path)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {"items": [[_plain(key, path), _plain(item, f"{path}[{key!r}]")]
                          for key, item in value.items()]}
    raise _errors.ConfigurationError(
        f"{path}: got a {type(value).__name__}, want numbers, texts, lists and "
        "dictionaries: the state of schedulers is kept on the server as text. What "
        "does not change belongs in a global variable or a closure, not in an "
        "attribute of the scheduler")


def _restored(value: Any, like: Any) -> Any:
    """The inverse of _plain; `like`, what is there now, has the functions,
    schedulers, and classes of dictionaries, and tells tuples from lists."""
    if isinstance(value, dict):
        if "scheduler" in value:
            load(like, value["scheduler"])
            return like
        if "function" in value:
            return like
        if "numpy" in value:
            name, items = value["numpy"]
            return numpy.array(_restored(items, None), name)[()]
        if "float" in value:
            return float(value["float"])
        known = like if isinstance(like, dict) else {}
        restored = copy.copy(known)
        restored.clear()
        for plain, item in value["items"]:
            key = _restored(plain, None)
            restored[key] = _restored(item, known.get(key))
        return restored
    if isinstance(value, list):
        likes = like[:len(value)] if isinstance(like, (list, tuple)) else ()
        items = [_restored(*pair) for pair in itertools.zip_longest(value, likes)]
        return tuple(items) if isinstance(like, tuple) else items
    return value
