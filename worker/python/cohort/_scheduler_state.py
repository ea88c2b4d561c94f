"""The state of a scheduler as JSON has it."""

import math
from typing import Any

import torch

from cohort import _errors


def save(scheduler: Any) -> Any:
    """The state of a scheduler, without functions: these are the script's, and
    load_state_dict leaves them alone.

    Raises:
        ConfigurationError: it has other things than numbers and texts.
    """
    return _plain({key: value for key, value in scheduler.state_dict().items()
                   if not callable(value)}, type(scheduler).__name__)


def load(scheduler: Any, values: Any) -> None:
    """Goes to a state of `save`."""
    scheduler.load_state_dict(_restored(values, scheduler.state_dict()))


def _plain(value: Any, path: str) -> Any:
    """`value` as JSON has it.

    Raises:
        ConfigurationError: it is no number, text, list or dictionary of such.
    """
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
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
        "dictionaries: the state of schedulers is kept on the server as text")


def _restored(value: Any, like: Any) -> Any:
    """The inverse of _plain; `like` tells tuples from lists."""
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        known = like if isinstance(like, dict) else {}
        return {_restored(key, None): _restored(item, known.get(key))
                for key, item in value["items"]}
    if isinstance(value, list):
        items = [_restored(item, None) for item in value]
        return tuple(items) if isinstance(like, tuple) else items
    return value
