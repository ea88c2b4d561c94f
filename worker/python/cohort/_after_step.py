"""Functions of a script that run between two steps."""

from collections.abc import Callable
from typing import Any

from cohort import _beside, _core, _errors
from cohort._step import Step, StepResult

_INSTEAD = ("Name it: cohort.join(..., keep=[module]), or use the server's "
            "--ema_decay for an average of the weights; call eval() on a teacher whose "
            "moving statistics should not move")


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
        self._look()
        for function in self._functions:
            function()
        self._look()
        self._step.beside.note()

    def check(self, last: StepResult | None) -> None:
        """Looks at the modules beside the model.

        Args:
            last: the step before, if there was one.

        Raises:
            UsageError: a step was void, or this process is a replacement, and
                one of them is not what it would be in one process.
        """
        changed = self._step.beside.changed() if last is not None else []
        name = self._name_of(changed)
        if last is None or name is None:
            return
        for one in changed:
            if one.is_trained():
                raise _errors.UsageError(_beside.trained_alone(one.name))
        if not last.counts:
            raise _errors.UsageError(
                f"{name}: changed in a step that became void ({last.reason}) and "
                f"is repeated, but the server does not keep it. {_INSTEAD}")
        self._refuse_late(name)
        if not self._warned:
            self._warned = True
            _core.log("warning", f"{name} changes in each step, but the server does "
                      "not keep it: if a step becomes void, this worker ends. "
                      f"{_INSTEAD}")

    def check_missed(self, last: StepResult | None, version: int) -> None:
        """Looks at them when the loop's body is over.

        Args:
            last: the step before, if there was one.
            version: of the weights with which the next step begins.

        Raises:
            UsageError: a step between the two had no batch of this process, and one
                of them changes with the steps.
        """
        if last is None or last.version is None or not last.counts or (
                version <= last.version):
            return
        name = self._name_of(self._step.beside.changed())
        if name is not None:
            raise _errors.UsageError(
                f"{name}: changes with the steps, but this worker had no batch in that "
                f"of version {last.version + 1}, and the server does not keep it. "
                f"{_INSTEAD}")

    def _name_of(self, changed: "list[_beside.Watched]") -> str | None:
        return self._step.calls.foreign or next((one.name for one in changed), None)

    def _look(self) -> None:
        if self._joined_at > 0:
            self._refuse_late(self._name_of(self._step.beside.changed()))

    def _refuse_late(self, name: str | None) -> None:
        if name is not None and self._joined_at > 0:
            raise _errors.UsageError(
                f"{name}: changes with the steps, but this process has joined at "
                f"version {self._joined_at} and does not have its value of that "
                f"version, because the server does not keep it. {_INSTEAD}")
