"""The updates of a step: with several optimizers, a step has one for each
job.step(optimizer)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from cohort import _errors


@dataclasses.dataclass
class Updates:
    """Which update of the step in progress is computed.

    Attributes:
        optimizers: in the order in which the loop's body steps them. The step
            ends with the last one, unless the script says otherwise.
        done: updates of this step that are over.
        of: position of the optimizer whose gradients have been computed and not
            been sent; None: no optimizer's.
    """
    optimizers: Sequence[torch.optim.Optimizer]
    done: int = 0
    of: int | None = None

    @property
    def several(self) -> bool:
        """Whether steps may have several."""
        return len(self.optimizers) > 1

    def begin(self) -> None:
        """A step begins."""
        self.done, self.of = 0, None

    def advice(self) -> str:
        """What to do about a call after the end of the step."""
        return "" if not self.several else (
            ". The step ended with job.step() of the last optimizer: pass them to "
            "cohort.join() in the order in which the loop's body steps them, or say "
            "job.step(optimizer, last=False)")

    def position_of(self, optimizer: Any, what: str) -> int:
        """The position of the optimizer that a call of the script names; None is
        the only one.

        Raises:
            UsageError: it is none of the job's.
        """
        for position, known in enumerate(self.optimizers):
            if optimizer is known or optimizer is None and not self.several:
                return position
        if optimizer is None:
            raise _errors.UsageError(
                f"{what}: got no optimizer, but the job has "
                f"{len(self.optimizers)}; say which one is stepped: "
                "job.backward(loss, optimizer=opt_d), then job.step(opt_d)")
        if callable(optimizer):
            raise _errors.UsageError(
                f"{what}: got a closure; compute the loss and call "
                "job.backward(loss) before")
        raise _errors.UsageError(
            f"{what}: got a {type(optimizer).__name__} that was not passed to "
            "cohort.join()")

    def begin_pass(self, position: int) -> bool:
        """A backward pass of this optimizer's update begins. Returns whether it
        is the update's first.

        Raises:
            UsageError: gradients of another optimizer were not used.
        """
        if self.of is not None and self.of != position:
            raise _errors.UsageError(
                f"job.backward(optimizer=...): got optimizer {position} of "
                f"cohort.join(), and job.step() of optimizer {self.of}, whose "
                "gradients have been computed, is missing; step it first")
        first = self.of is None
        self.of = position
        return first

    def check_step(self, position: int) -> None:
        """Raises UsageError unless this optimizer's gradients are there."""
        if self.of == position:
            return
        raise _errors.UsageError(
            f"job.step(optimizer): no gradients yet of optimizer {position} of "
            "cohort.join(); call job.backward(loss, optimizer=...) with it first")

    def end(self) -> None:
        """The update is over, and another one follows."""
        self.done += 1
        self.of = None
