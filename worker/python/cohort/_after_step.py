"""Functions of a script that run between two steps."""

from collections.abc import Callable
from typing import Any

from cohort import _beside, _core, _errors
from cohort._step import Step, StepResult

_INSTEAD = ("Name it: cohort.join(..., keep=[module]), or use the server's "
            "--ema_decay for an average of the weights")


class AfterStep:
    """Functions that are called once for each version, and a look at modules of
    the script that change in steps though the server does not keep them.

    Args:
        step: the job's.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._functions: list[Callable[[], Any]] = []
        # The version at which the process joined.
        self._joined_at = 0
        self._warned = False

    def joined(self, version: int) -> None:
        """Called once the process has joined, at this version."""
        self._joined_at = version

    def add(self, function: Callable[[], Any]) -> None:
        """See Job.after_step."""
        self._functions.append(function)

    def run(self) -> None:
        """Called when the step has become part of a version."""
        if not self._functions:
            return
        self._refuse_late()
        for function in self._functions:
            function()
        self._refuse_late()
        self._step.beside.note()

    def check(self, last: StepResult | None) -> None:
        """Looks at the modules beside the model.

        Args:
            last: the step before, if there was one.

        Raises:
            UsageError: a step was void, or this process is a replacement, and
                one of them is not what it would be in one process.
        """
        name = self._changed() if last is not None else None
        if last is None or name is None:
            return
        trained = self._step.beside.trained()
        if trained is not None:
            raise _errors.UsageError(_beside.trained_alone(trained))
        if not last.counts:
            raise _errors.UsageError(
                f"{name}: changed in a step that became void ({last.reason}) and "
                f"is repeated, but the server does not keep it. {_INSTEAD}")
        self._refuse_late()
        if not self._warned:
            self._warned = True
            _core.log("warning", f"{name} changes in each step, but the server does "
                      "not keep it: if a step becomes void, this worker ends. "
                      f"{_INSTEAD}; call eval() on a teacher whose moving "
                      "statistics should not move")

    def _changed(self) -> str | None:
        return self._step.calls.foreign or self._step.beside.changed()

    def _refuse_late(self) -> None:
        name = self._changed() if self._joined_at > 0 else None
        if name is not None:
            raise _errors.UsageError(
                f"{name}: changes with the steps, but this process has joined at "
                f"version {self._joined_at} and does not have its value of that "
                f"version, because the server does not keep it. {_INSTEAD}")
