"""Learning-rate schedulers whose state the server keeps with the weights."""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from cohort import _errors

STATE_BYTES_MAX = 64 << 10


def _refuse_step(*args: Any, **kwargs: Any) -> None:
    raise _errors.UsageError(
        "scheduler.step(): job.step() advances the schedulers that were passed to "
        "cohort.join(), so that a step that is repeated has the same rate; remove "
        "this call")


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


class Schedulers:
    """The schedulers of a job, and the learning rates of its optimizer.

    Args:
        optimizer: its groups' "lr" are the rates.
        each_step: advanced once a step.
        each_epoch: advanced once an epoch.

    Raises:
        ConfigurationError: a scheduler of another optimizer, or one that needs
            a measure (ReduceLROnPlateau).
    """

    def __init__(self, optimizer: torch.optim.Optimizer,
                 each_step: Sequence[Any], each_epoch: Sequence[Any]) -> None:
        self._optimizer = optimizer
        self._each_step = list(each_step)
        self._each_epoch = list(each_epoch)
        self._epoch = 0
        self._steps = []
        for scheduler in (*self._each_step, *self._each_epoch):
            name = type(scheduler).__name__
            if isinstance(scheduler,
                          torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise _errors.ConfigurationError(
                    f"{name}: needs a measure, which comes too late for the step "
                    "that it would act on; use a schedule over steps or epochs")
            # OneCycleLR does so by default.
            if getattr(scheduler, "cycle_momentum", False):
                raise _errors.ConfigurationError(
                    f"{name}: changes the momentum, but the server has one for "
                    "the whole run; pass cycle_momentum=False to it")
            if getattr(scheduler, "optimizer", None) is not optimizer:
                raise _errors.ConfigurationError(
                    f"{name}: belongs to another optimizer than that passed to "
                    "cohort.join()")
            self._steps.append(scheduler.step)
            scheduler.step = _refuse_step

    def __bool__(self) -> bool:
        return bool(self._each_step or self._each_epoch)

    @property
    def by_epoch(self) -> bool:
        """Whether some are advanced once an epoch."""
        return bool(self._each_epoch)

    def rates(self) -> list[float]:
        """The learning rate of each group now; none without schedulers."""
        if not self:
            return []
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def begin_step(self, epoch: int) -> None:
        """A step of this epoch begins: epoch schedulers catch up."""
        while self._epoch < epoch:
            for advance in self._steps[len(self._each_step):]:
                self._advance(advance)
            self._epoch += 1

    def advance(self) -> None:
        """One step is computed."""
        for advance in self._steps[:len(self._each_step)]:
            self._advance(advance)

    def _advance(self, step: Any) -> None:
        # A scheduler warns unless the optimizer has counted a step.
        self._optimizer._step_count = getattr(  # type: ignore[attr-defined]
            self._optimizer, "_step_count", 0) + 1
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        step()

    def save(self) -> bytes:
        """The state, for the server."""
        state = {
            "epoch": self._epoch,
            "rates": [float(group["lr"])
                      for group in self._optimizer.param_groups],
            "schedulers": [
                # Functions are the script's; load_state_dict leaves them alone.
                _plain({key: value for key, value in
                        scheduler.state_dict().items() if not callable(value)},
                       type(scheduler).__name__)
                for scheduler in (*self._each_step, *self._each_epoch)]}
        encoded = json.dumps(state, separators=(",", ":")).encode()
        if len(encoded) > STATE_BYTES_MAX:
            raise _errors.ConfigurationError(
                f"the schedulers' state: got {len(encoded)} bytes, want at most "
                f"{STATE_BYTES_MAX}")
        return encoded

    def load(self, encoded: bytes) -> None:
        """Goes back, or on, to a state of `save`."""
        state = json.loads(encoded)
        schedulers = (*self._each_step, *self._each_epoch)
        if len(state["schedulers"]) != len(schedulers):
            raise _errors.RunMismatchError(
                f"schedulers: got {len(schedulers)}, but the run has "
                f"{len(state['schedulers'])}; start all workers with the same "
                "program")
        self._epoch = state["epoch"]
        for scheduler, values in zip(schedulers, state["schedulers"]):
            scheduler.load_state_dict(_restored(values, scheduler.state_dict()))
            # load_state_dict replaces attributes, `step` not among them.
            scheduler.step = _refuse_step
        for group, rate in zip(self._optimizer.param_groups, state["rates"]):
            group["lr"] = rate
