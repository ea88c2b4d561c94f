"""Errors of the package. Each message says what was seen, what was wanted, and
what to do."""

import dataclasses
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from cohort import _core


@dataclasses.dataclass
class _Ends:
    """What the script may end by.

    Attributes:
        refusal: the last UsageError in the step in progress; empty: none.
        uncaught: an error of any kind.
    """
    refusal: str = ""
    uncaught: str = ""


_ends = _Ends()


def forget_refusal() -> None:
    """The script continues."""
    _ends.refusal = ""


def end_of_script() -> tuple[str, bool]:
    """Why it ends, and whether it was refused, as that of another process would be."""
    if _ends.refusal:
        return _ends.refusal, True
    if _ends.uncaught:
        return f"the script has raised {_ends.uncaught}", False
    return ("the script has ended; to stop all workers, break in all of them, or "
            "cohortctl run drain"), False


def note_uncaught(error: BaseException) -> None:
    """The script ends by this error."""
    _ends.uncaught = f"{type(error).__name__}: {error}"


class StatusError(Exception):
    """A status of the C++ client: its code, such as "ABORTED", and a text. Does
    not leave the package."""


_core.raise_status_as(StatusError)


class CohortError(Exception):
    """Base of all errors of this package."""


class UsageError(CohortError):
    """The script uses the package in a way that would train wrongly."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if type(self) is UsageError:
            _ends.refusal = f"UsageError: {text}"


def refusing(text: str) -> Callable[..., NoReturn]:
    """What raises a UsageError of this text, in place of a method."""
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(text)
    return refuse


class NoLengthError(UsageError, TypeError):
    """len(loader) where there is no length. list(), tqdm and others take a
    TypeError for a length that is not known, and continue without it."""


class ConfigurationError(CohortError):
    """The model, the optimizer, the data or the server's address cannot be
    used. Other workers are not affected."""


class RunMismatchError(CohortError):
    """The model or the data differs from the run's. The text names the first
    difference."""


class ServerUnreachableError(CohortError):
    """The server did not answer for `server_timeout` seconds, or it was replaced
    by one of another run."""


class AccessDeniedError(CohortError):
    """The server does not know this worker's certificate, or it is another
    run's or another rank's."""


class TrainingError(CohortError):
    """The run cannot continue for this worker."""


class Stopped(SystemExit):
    """SIGTERM or a drain: the step in progress was finished, and the worker has
    left the run. The exit code is not 0, so that a supervisor starts another
    worker."""


_KINDS: dict[str, type[CohortError]] = {
    "DEADLINE_EXCEEDED": ServerUnreachableError,
    "UNAVAILABLE": ServerUnreachableError,
    "NOT_FOUND": ServerUnreachableError,
    "UNAUTHENTICATED": AccessDeniedError,
    "PERMISSION_DENIED": AccessDeniedError,
    "FAILED_PRECONDITION": RunMismatchError,
    "INVALID_ARGUMENT": ConfigurationError,
    "RESOURCE_EXHAUSTED": ConfigurationError,
}

# The assignment in progress is void; the next one follows.
VOID = frozenset({"ABORTED", "UNAVAILABLE", "OUT_OF_RANGE"})


def code_of(error: StatusError) -> str:
    """The status code of a StatusError, such as "ABORTED"."""
    return str(error.args[0])


def raise_from(error: StatusError) -> NoReturn:
    """Raises the package's error for a status of the C++ client."""
    kind = _KINDS.get(code_of(error), TrainingError)
    raise kind(str(error.args[1])) from None


# Exit codes after an uncaught error, as of cohort-worker: with 3 a supervisor
# does not start the script again, because it would end so again.
_EXIT_CODES: tuple[tuple[type[CohortError], int], ...] = (
    (UsageError, _core.ExitCode.CONFIG.value),
    (ConfigurationError, _core.ExitCode.CONFIG.value),
    (RunMismatchError, _core.ExitCode.CONFIG.value),
    (AccessDeniedError, _core.ExitCode.DENIED.value),
    (ServerUnreachableError, _core.ExitCode.UNREACHABLE.value))

_installed = False


def install_exit_codes() -> None:
    """From now on an uncaught error of the package ends the process with its exit
    code. The hook that was there before prints it."""
    global _installed
    if _installed:
        return
    _installed = True
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException,
             trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        note_uncaught(error)
        # An interactive interpreter continues.
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return
        for known, code in _EXIT_CODES:
            if isinstance(error, known):
                # The interpreter takes the code of a SystemExit from a hook.
                raise SystemExit(code)

    sys.excepthook = hook
