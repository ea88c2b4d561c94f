"""Runs rows: a server and a process for each worker, forked from this one, which
has imported torch; beside them one process for the reference."""

import dataclasses
import faulthandler
import gc
import math
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

import torch

from shapes.rows import Refusal, Row
from shapes.script import SEED, Alone, Script, Worker

# After an error of one rank that is not the one of the table; another rank may
# end with that.
GRACE = 5.0
# The error of a float32 process times this is the limit.
FACTOR = 20.0
# That error, relative to the values' norm, is taken as at least this: about four
# roundings.
FLOOR = 5e-7

_fork = multiprocessing.get_context("fork")
Values = list[tuple[int, str, str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a process ended that did not return values."""
    classes: tuple[str, ...]
    text: str
    trace: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of a trial.

    Attributes:
        row: the row.
        title: what tells this trial from others of the row.
        kind: "right", "refused", "WRONG", "HANG" or "error".
        text: what differs most, or the error.
        detail: traces and logs.
        replaced: a worker was killed and replaced; then any error of the package
            is a refusal.
    """
    row: Row
    title: str
    kind: str
    text: str = ""
    detail: str = ""
    replaced: bool = False

    @property
    def passed(self) -> bool:
        if self.row.refused is None and not self.replaced or self.row.survives:
            return self.kind == "right"
        return self.kind == "refused" or (
            (self.row.or_right or self.replaced) and self.kind == "right")


# ---- the processes

def _child(function: Callable[[], Any], file: pathlib.Path) -> None:
    with open(file.with_suffix(".err"), "wb", buffering=0) as err:
        os.dup2(err.fileno(), 2)
        os.dup2(err.fileno(), 1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    try:
        answer = function()
    except BaseException as error:  # a SystemExit, too, is a result
        answer = Failure(tuple(kind.__name__ for kind in type(error).__mro__),
                         str(error), traceback.format_exc())
    file.write_bytes(pickle.dumps(answer))


def _run_worker(row: Row, sizes: Sequence[int], rank: int, address: str,
                dies: str | None) -> Values:
    script = Worker(sizes, row.steps, rank, address, dies)
    try:
        row.script(script)
        script.finish()
    finally:
        if script.job is not None:
            script.job.leave()
    return script.values


def _run_alone(row: Row, sizes: Sequence[int], dtype: torch.dtype) -> Values:
    script = Alone(sizes, row.steps, dtype)
    torch.manual_seed(0)
    row.script(script)
    script.finish()
    return script.values


def _run_both(row: Row, sizes: Sequence[int]) -> tuple[Values, Values]:
    return (_run_alone(row, sizes, torch.float32),
            _run_alone(row, sizes, torch.float64))


class _Process:
    """A forked process and its answer."""

    def __init__(self, function: Callable[[], Any], file: pathlib.Path) -> None:
        self._file = file
        self.process = _fork.Process(target=_child, args=(function, file),
                                     daemon=True)
        self.process.start()

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    @property
    def killed_itself(self) -> bool:
        return self.process.exitcode == -signal.SIGKILL

    def answer(self) -> Any:
        if self._file.exists():
            return pickle.loads(self._file.read_bytes())
        return Failure(("Died",), f"exit code {self.process.exitcode}",
                       self.output())

    def output(self) -> str:
        return self._file.with_suffix(".err").read_text(errors="replace")

    def kill(self, stacks: bool = False) -> None:
        if stacks and not self.ended:
            os.kill(self.process.pid, signal.SIGUSR1)
            self.process.join(0.2)
        self.process.kill()
        self.process.join()


class Trial:
    """A row that is being run with a number of workers.

    Args:
        dies: rank 1 kills itself in the second step, after the pass "forward" or
            "backward" or after job.step(), "step", and is replaced.
    """

    def __init__(self, row: Row, workers: int, bin_dir: pathlib.Path,
                 dies: str | None = None) -> None:
        self.row, self.workers, self._dies = row, workers, dies
        self._title = dies or str(workers)
        # A replacement has no values of the steps before.
        self._replaced = dies is not None
        self.sizes = row.sizes[workers]
        self._folder = tempfile.TemporaryDirectory(prefix="cohort-shapes-")
        self._dir = pathlib.Path(self._folder.name)
        self._address = self._dir / "address"
        self._began = time.monotonic()
        self._failed_at: float | None = None
        self._ranks: list[_Process] = []
        self._reference = None
        with (self._dir / "log").open("wb") as log:
            self._server = subprocess.Popen(
                [bin_dir / "cohort-server", f"--workers={workers}",
                 "--listen=127.0.0.1:0", "--ops_listen=",
                 f"--address_file={self._address}", f"--seed={SEED}",
                 f"--max_steps={row.steps}", "--epochs=1000", *row.flags],
                stdout=log, stderr=log)
        if row.refused is None or row.or_right:
            self._reference = _Process(lambda: _run_both(row, self.sizes),
                                       self._dir / "alone")

    def waits_for(self) -> list[Any]:
        """What the runner wakes up for."""
        return [process.process.sentinel for process in self._processes()
                if not process.ended]

    def _processes(self) -> Iterator[_Process]:
        yield from self._ranks
        if self._reference is not None:
            yield self._reference

    @property
    def starting(self) -> bool:
        """The server has no address yet."""
        return not self._ranks

    def poll(self) -> Outcome | None:
        """What came out; None while it runs."""
        if self.starting:
            if not self._address.exists():
                if self._server.poll() is None:
                    return None
                return self._end("error", "no server", self._log())
            address = self._address.read_text().strip()
            if not address:
                return None
            self._ranks = [
                self._rank(rank, address, self._dies if rank == 1 else None)
                for rank in range(self.workers)]
        if self._dies and self._ranks[1].ended:
            self._dies = None
            if self._ranks[1].killed_itself:
                self._ranks[1] = self._rank(
                    1, self._address.read_text().strip(), None)
        now = time.monotonic()
        if all(process.ended for process in self._processes()):
            return self._judge()
        failures = [answer for answer in (
            rank.answer() for rank in self._ranks[:1 if self._dies else None]
            if rank.ended) if isinstance(answer, Failure)]
        if failures and self._failed_at is None:
            self._failed_at = now
        if any(map(self._is_refusal, failures)) or (
                failures and now > self._failed_at + GRACE):
            return self._judge()
        if now > self._began + self.row.patience:
            for process in self._processes():
                process.kill(stacks=True)
            return self._end("HANG", f"after {self.row.patience:.0f} s", "\n".join(
                process.output() for process in self._processes()))
        return None

    def _rank(self, rank: int, address: str, dies: str | None) -> _Process:
        row, sizes = self.row, self.sizes
        return _Process(lambda: _run_worker(row, sizes, rank, address, dies),
                        self._dir / f"rank{rank}")

    def _log(self) -> str:
        return (self._dir / "log").read_text(errors="replace")

    def close(self) -> None:
        for process in self._processes():
            process.kill()
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def _end(self, kind: str, text: str = "", detail: str = "") -> Outcome:
        return Outcome(self.row, self._title, kind, text,
                       f"{detail}\nserver: {self._log()}", self._replaced)

    def _judge(self) -> Outcome:
        answers = [rank.answer() for rank in self._ranks if rank.ended]
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        if failures:
            return self._judge_failures(failures)
        if self._reference is None:
            return self._end("WRONG", "trained, want an error")
        reference = self._reference.answer()
        if isinstance(reference, Failure):
            return self._end("error", f"of one process: {reference.text[:200]}",
                             reference.trace)
        text, right = compare(answers, *reference, replaced=self._replaced)
        return self._end("right" if right else "WRONG", text)

    def _is_refusal(self, failure: Failure) -> bool:
        wanted = (Refusal("CohortError", ())
                  if self._replaced and not self.row.survives
                  else self.row.refused)
        return wanted is not None and wanted.matches(failure.classes, failure.text)

    def _judge_failures(self, failures: list[Failure]) -> Outcome:
        detail = "\n".join(failure.trace for failure in failures)
        for failure in filter(self._is_refusal, failures):
            return self._end("refused", failure.text, detail)
        # The package's own errors say most.
        failures.sort(key=lambda failure: "CohortError" not in failure.classes)
        first = failures[0]
        return self._end("error", f"{first.classes[0]}: {first.text[:300]}",
                         detail)


# ---- the comparison

# Kind and name of a value, its step, and which of that name in the step.
Key = tuple[str, str, int, int]


def _by_key(values: Values) -> dict[Key, torch.Tensor]:
    found: dict[Key, torch.Tensor] = {}
    for step, kind, name, value in values:
        number = 0
        while (kind, name, step, number) in found:
            number += 1
        found[kind, name, step, number] = value
    return found


def _combined(kind: str, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What is compared with one process's value, of those of the ranks."""
    if kind == "same":
        return values
    if kind == "own":
        return [torch.cat(values)]
    return [torch.stack(values).double().sum(0)]


def _distance(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    """The 2-norm of the difference; inf if a number is not finite, or if there
    are more of one."""
    if ours.shape != wanted.shape:
        return math.inf
    found = float((ours.double() - wanted.double()).norm())
    return found if math.isfinite(found) else math.inf


@dataclasses.dataclass(frozen=True)
class _Difference:
    """In units, of which FACTOR are allowed; and as text."""
    multiple: float
    text: str


def _difference(ours: torch.Tensor, single: torch.Tensor,
                double: torch.Tensor) -> _Difference:
    if ours.shape != double.shape:
        return _Difference(math.inf, f"has shape {tuple(ours.shape)}, want "
                           f"{tuple(double.shape)}")
    if not double.dtype.is_floating_point:
        return _Difference(0.0 if torch.equal(ours.long(), double.long())
                           else math.inf,
                           f"is {ours.tolist()}, want {double.tolist()}")
    norm = float(double.double().norm())
    unit = max(_distance(single, double), FLOOR * norm, 1e-30)
    distance = _distance(ours, double)
    return _Difference(distance / unit, f"off by {distance / (norm or 1):.1e}")


def compare(ranks: list[Values], single: Values, double: Values, *,
            replaced: bool = False) -> tuple[str, bool]:
    """The greatest difference, and whether all values are right.

    Args:
        ranks: the values of each worker.
        single: those of one process in float32.
        double: in float64.
        replaced: a worker may lack values.
    """
    found = [_by_key(values) for values in ranks]
    singles, doubles = _by_key(single), _by_key(double)
    worst, where = 0.0, ""
    compared = 0
    # Squares of our distances, of the float32 process's, and of the values.
    squares = [0.0, 0.0, 0.0]
    for key in sorted(set(doubles).union(*found)):
        kind, name, step, _ = key
        present = [values[key] for values in found if key in values]
        if key not in doubles:
            return f"{name} of step {step}: one process has no such value", False
        if kind == "same" or replaced:
            if len(present) < len(ranks) and not replaced:
                return f"{name} of step {step}: a worker has no such value", False
            if len(present) < len(ranks) and kind != "same":
                continue
        if not present:
            return f"{name} of step {step}: no worker has such a value", False
        for value in _combined(kind, present):
            compared += 1
            difference = _difference(value, singles[key], doubles[key])
            for number, distance in enumerate((
                    _distance(value, doubles[key]),
                    _distance(singles[key], doubles[key]),
                    float(doubles[key].double().norm()))):
                squares[number] += distance * distance
            if difference.multiple > worst or not where:
                worst = difference.multiple
                where = f"{name} of step {step} {difference.text}"
    if compared == 0:
        return "nothing is compared", False
    ours, theirs = (math.sqrt(square / (squares[2] or 1))
                    for square in squares[:2])
    return (f"{worst:.1f} of {FACTOR:.0f}: {where}; all {ours:.1e}, float32 "
            f"{theirs:.1e}", worst <= FACTOR)


# ---- many rows

def run_all(waiting: Sequence[Callable[[], Trial]], together: int
            ) -> Iterator[Outcome]:
    """The outcomes of trials, as they come; `together` at a time."""
    # Forked processes then share these objects' memory.
    gc.collect()
    gc.freeze()
    waiting = list(reversed(waiting))
    trials: list[Trial] = []
    try:
        while waiting or trials:
            while waiting and len(trials) < together:
                trials.append(waiting.pop()())
            sentinels = [s for trial in trials for s in trial.waits_for()]
            connection.wait(sentinels, 0.01 if any(
                trial.starting for trial in trials) else 0.1)
            for trial in list(trials):
                outcome = trial.poll()
                if outcome is not None:
                    trials.remove(trial)
                    trial.close()
                    yield outcome
    finally:
        gc.unfreeze()
        for trial in trials:
            trial.close()
