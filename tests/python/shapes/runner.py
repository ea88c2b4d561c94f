"""Runs rows: a server and a process for each worker, forked from this one, which
has imported torch; beside them one process for the reference."""

import dataclasses
import faulthandler
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

from shapes.rows import Row
from shapes.script import SEED, Alone, Script, Worker

# Seconds after which a row counts as stuck.
PATIENCE = 20.0
# Of an error of one rank, that the others may follow with their own.
GRACE = 0.5
# The error of a float32 process times this is the limit.
FACTOR = 20.0
# That error, relative to the values' norm, is taken as at least this: about two
# roundings.
FLOOR = 2e-7

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
    """Of a row with a number of workers. `kind`: "right", "refused", "WRONG",
    "HANG", "error"."""
    row: Row
    workers: int
    kind: str
    text: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        if self.row.refused is None:
            return self.kind == "right"
        return self.kind == "refused" or (self.row.or_right and
                                          self.kind == "right")


# ---- the processes

def _child(function: Callable[[], Any], file: pathlib.Path) -> None:
    with open(file.with_suffix(".err"), "wb", buffering=0) as err:
        os.dup2(err.fileno(), 2)
        os.dup2(err.fileno(), 1)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    try:
        answer = function()
    except BaseException as error:  # a SystemExit, too, is a result
        answer = Failure(tuple(kind.__name__ for kind in type(error).__mro__),
                         str(error), traceback.format_exc())
    file.write_bytes(pickle.dumps(answer))


def _run_worker(row: Row, sizes: Sequence[int], rank: int,
                address: str) -> Values:
    script = Worker(sizes, row.steps, rank, address)
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
    """A row that is being run with a number of workers."""

    def __init__(self, row: Row, workers: int, bin_dir: pathlib.Path) -> None:
        self.row, self.workers = row, workers
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
            row, sizes = self.row, self.sizes
            self._ranks = [
                _Process(lambda rank=rank: _run_worker(row, sizes, rank, address),
                         self._dir / f"rank{rank}")
                for rank in range(self.workers)]
        now = time.monotonic()
        if all(process.ended for process in self._processes()):
            return self._judge()
        if self._failed_at is None and any(
                rank.ended and isinstance(rank.answer(), Failure)
                for rank in self._ranks):
            self._failed_at = now
        if self._failed_at is not None and now > self._failed_at + GRACE:
            return self._judge()
        if now > self._began + PATIENCE:
            for process in self._processes():
                process.kill(stacks=True)
            return self._end("HANG", f"after {PATIENCE:.0f} s", "\n".join(
                process.output() for process in self._processes()))
        return None

    def _log(self) -> str:
        return (self._dir / "log").read_text(errors="replace")

    def close(self) -> None:
        for process in self._processes():
            process.kill()
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def _end(self, kind: str, text: str = "", detail: str = "") -> Outcome:
        return Outcome(self.row, self.workers, kind, text,
                       f"{detail}\nserver: {self._log()}",
                       time.monotonic() - self._began)

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
        text, right = compare(answers, *reference)
        return self._end("right" if right else "WRONG", text)

    def _judge_failures(self, failures: list[Failure]) -> Outcome:
        detail = "\n".join(failure.trace for failure in failures)
        wanted = self.row.refused
        for failure in failures:
            if wanted is not None and wanted.matches(failure.classes,
                                                     failure.text):
                return self._end("refused", failure.text, detail)
        # The package's own errors say most.
        failures.sort(key=lambda failure: "CohortError" not in failure.classes)
        first = failures[0]
        return self._end("error", f"{first.classes[0]}: {first.text[:300]}",
                         detail)


# ---- the comparison

def _grouped(values: Values) -> dict[tuple[str, str], list[torch.Tensor]]:
    groups: dict[tuple[str, str], list[torch.Tensor]] = {}
    for _, kind, name, value in values:
        groups.setdefault((kind, name), []).append(value)
    return groups


def _combined(kind: str, ranks: list[list[torch.Tensor]]
              ) -> list[list[torch.Tensor]]:
    """What is compared with one process's values, of one kind and name."""
    if kind == "same":
        return ranks
    count = len(ranks[0])
    if any(len(values) != count for values in ranks):
        return [[]]
    calls = list(zip(*ranks))
    if kind == "own":
        return [[torch.cat(pieces) for pieces in calls]]
    return [[torch.stack(shares).double().sum(0) for shares in calls]]


def _distance(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    """The 2-norm of the difference; inf if a number is not finite."""
    found = float((ours.double() - wanted.double()).norm())
    return found if math.isfinite(found) else math.inf


def compare(ranks: list[Values], single: Values,
            double: Values) -> tuple[str, bool]:
    """The greatest multiple of the limit's unit, and whether all values are
    right."""
    groups = [_grouped(values) for values in ranks]
    singles, doubles = _grouped(single), _grouped(double)
    worst, where = 0.0, "nothing"
    if not doubles:
        return "nothing is compared", False
    for (kind, name), wanted in doubles.items():
        present = [group[kind, name] for group in groups if (kind, name) in group]
        if not present or (kind == "same" and len(present) < len(ranks)):
            return f"{name}: no value of a worker", False
        for values in _combined(kind, present):
            if len(values) != len(wanted):
                return (f"{name}: {len(values)} values, want {len(wanted)}",
                        False)
            for number, (a, b, c) in enumerate(
                    zip(values, singles[kind, name], wanted)):
                if a.shape != c.shape:
                    return (f"{name}: shape {tuple(a.shape)}, want "
                            f"{tuple(c.shape)}", False)
                if not c.dtype.is_floating_point:
                    if not torch.equal(a.long(), c.long()):
                        return f"{name}: {a.tolist()}, want {c.tolist()}", False
                    continue
                unit = max(_distance(b, c), FLOOR * float(c.double().norm()),
                           1e-30)
                multiple = _distance(a, c) / unit
                if multiple > worst:
                    of = float(c.double().norm()) or 1.0
                    worst, where = multiple, (
                        f"{name}[{number}] off by {multiple * unit / of:.1e}")
    return f"{worst:.1f} of {FACTOR:.0f} ({where})", worst <= FACTOR


# ---- many rows

def run_all(rows: Sequence[Row], bin_dir: pathlib.Path, together: int
            ) -> Iterator[Outcome]:
    """The outcomes, as they come; `together` trials at a time."""
    waiting = [(row, workers) for row in rows for workers in row.sizes]
    waiting.reverse()
    trials: list[Trial] = []
    try:
        while waiting or trials:
            while waiting and len(trials) < together:
                trials.append(Trial(*waiting.pop(), bin_dir))
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
        for trial in trials:
            trial.close()
