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
        names: what errors call them.
        done: updates of this step that are over.
        of: position of the optimizer whose gradients have been computed and not
            been sent; None: no optimizer's.
        ended: what has ended the step, and what to do if that was too early,
            until the next batch is requested.
    """
    optimizers: Sequence[torch.optim.Optimizer]
    names: Sequence[str]
    done: int = 0
    of: int | None = None
    ended: str = ""

    @property
    def several(self) -> bool:
        """Whether steps may have several."""
        return len(self.optimizers) > 1

    def begin(self) -> None:
        """A step begins."""
        self.done, self.of, self.ended = 0, None, ""

    def ends_step(self, position: int, last: bool | None) -> bool:
        """Whether the step ends with job.step(optimizer, last=last)."""
        name = self.names[position]
        if last is None and position == len(self.optimizers) - 1:
            self.ended = (
                f"job.step() of {name}, the last of the list. Pass the optimizers to "
                "cohort.join() in the order in which the loop's body steps them, or "
                "say job.step(optimizer, last=False) where another one follows")
        elif last:
            self.ended = (f"job.step(last=True) of {name}. Leave last=True out where "
                          "another one follows")
        return bool(self.ended)

    def check_open(self, what: str) -> None:
        """Raises UsageError if the step has ended and its body continues."""
        if self.ended:
            raise _errors.UsageError(
                f"{what}: called after the step was ended by {self.ended}")

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
                f"{what}: got no optimizer, want one of {', '.join(self.names)}: "
                "job.backward(loss, optimizer=opt_d), then job.step(opt_d)")
        if callable(optimizer):
            raise _errors.UsageError(
                f"{what}: got a closure; compute the loss and call "
                "job.backward(loss) before")
        raise _errors.UsageError(
            f"{what}: got a {type(optimizer).__name__} that was not passed to "
            f"cohort.join(), want {', '.join(self.names)}")

    def begin_pass(self, position: int) -> bool:
        """A backward pass of this optimizer's update begins. Returns whether it
        is the update's first.

        Raises:
            UsageError: gradients of another optimizer were not used.
        """
        if self.of is not None and self.of != position:
            raise _errors.UsageError(
                f"job.backward(): got {self.names[position]}, but the gradients of "
                f"{self.names[self.of]} are computed and not used; step it first, "
                "with job.step(optimizer)")
        first = self.of is None
        self.of = position
        return first

    def check_step(self, position: int) -> None:
        """Raises UsageError unless this optimizer's gradients are there."""
        if self.of == position:
            return
        seen = ("" if self.of is None else
                f"; those of {self.names[self.of]} are computed")
        raise _errors.UsageError(
            f"job.step(): got {self.names[position]}, whose gradients are not computed "
            f"yet{seen}. Call job.backward(loss, optimizer=...) with the optimizer "
            "that is stepped next")

    def end(self) -> None:
        """The update is over, and another one follows."""
        self.done += 1
        self.of = None
