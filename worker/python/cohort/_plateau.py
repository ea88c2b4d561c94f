"""A scheduler that acts on a measure: ReduceLROnPlateau.

The script steps it, at any time between two steps or in one. Its state and the
rates are kept as a tensor of the script is (_kept.py), so they belong to the
version from which the next step begins, and members compare them in each step."""

import json
from collections.abc import Callable
from typing import Any

import torch

from cohort import _scheduler_state
from cohort._optimizer import GroupNumbers


def replace_step(scheduler: Any, step: Callable[..., None]) -> None:
    """Through the class, as state_dict() has all attributes of the instance. Copies
    and pickles of it have the class from before."""
    kind = type(scheduler)
    scheduler.__class__ = type(kind.__name__, (kind,), {
        "__module__": kind.__module__,
        "__reduce_ex__": lambda self, protocol: (
            object.__new__, (kind,), self.__getstate__()),
        "step": lambda self, *args, **kwargs: step(*args, **kwargs)})


class Plateau:
    """A ReduceLROnPlateau that the script steps.

    Args:
        scheduler: its step() is replaced until `detach`.
        numbers: of its optimizer.
        advance: calls the function, as a scheduler's step.
    """

    def __init__(self, scheduler: Any, numbers: GroupNumbers,
                 advance: Callable[[Any], None]) -> None:
        self._scheduler = scheduler
        self._class = type(scheduler)
        self._numbers = numbers
        self._advance = advance
        # As the last call gave it.
        self._measure: float | None = None
        self._tensor = torch.empty(0, dtype=torch.uint8)
        # Older versions of torch have it after the first step only.
        vars(scheduler).setdefault("_last_lr", [
            float(group["lr"]) for group in scheduler.optimizer.param_groups])
        replace_step(scheduler, self._called)

    def detach(self) -> None:
        """The scheduler is the script's alone again."""
        self._scheduler.__class__ = self._class

    def _called(self, metrics: Any, *args: Any, **kwargs: Any) -> None:
        measure = float(metrics)
        self._advance(lambda: self._class.step(self._scheduler, measure, *args,
                                               **kwargs))
        self._measure = measure

    # ---- what is kept

    @property
    def name(self) -> str:
        """In errors."""
        return f"{self._class.__name__}.step(measure)"

    def tensor(self) -> torch.Tensor:
        """What stands now, as text; the same object each time."""
        text = json.dumps({
            "numbers": self._numbers.now(), "measure": repr(self._measure),
            "scheduler": _scheduler_state.save(self._scheduler)}).encode()
        self._tensor.resize_(len(text))
        self._tensor.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        return self._tensor

    def take(self) -> None:
        """Goes to what was written into the tensor."""
        state = json.loads(bytes(self._tensor.tolist()))
        self._measure = (None if state["measure"] == "None" else
                         float(state["measure"]))
        _scheduler_state.load(self._scheduler, state["scheduler"])
        self._numbers.restore(state["numbers"])
