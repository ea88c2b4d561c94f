"""What the benchmarks share: processes, turns, ratios, tables."""

import collections
import contextlib
import math
import os
import pathlib
import re
import resource
import selectors
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
os.environ.setdefault("COHORT_BIN_DIR", str(ROOT / "build/release/bin"))
BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"]).resolve()


class Failed(SystemExit):
    """Ends a benchmark with its message, unless it is caught."""


class Numbers(collections.defaultdict):
    """What programs that measure print: a line is a name and numbers. Holds
    name -> the numbers of each line; other lines are passed over."""

    def __init__(self):
        super().__init__(list)

    def add(self, line):
        name, *words = line.split() or [""]
        with contextlib.suppress(ValueError):
            numbers = list(map(float, words))
            self[name].append(numbers)

    def values(self, name):
        """The first number of each line of that name."""
        return [numbers[0] for numbers in self[name]]


class Processes:
    """Processes that run side by side. All are ended when it is left."""

    def __init__(self, patience_s=300):
        self._deadline = time.monotonic() + patience_s
        self._outputs = selectors.DefaultSelector()
        self._started = []
        self._names = {}
        self._on_line = {}
        # Of each process: what is no whole line yet, and the last one.
        self._rest = collections.defaultdict(bytes)
        self.last_line = collections.defaultdict(str)
        # Those whose exit code does not count.
        self.may_fail = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._started:
            process.kill()
            process.wait()
            process.stdout.close()

    def start(self, name, command, on_line=None, **environment):
        """Starts a process, and passes on each line that it prints."""
        # pylint: disable=consider-using-with
        process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **environment})
        self._started.append(process)
        self._names[process], self._on_line[process] = name, on_line
        self._outputs.register(process.stdout, selectors.EVENT_READ, process)
        return process

    def start_server(self, *flags, command=(), listen="127.0.0.1:0",
                     **environment):
        """Starts a server; returns it and its address. `command`: in place of
        the present build's program."""
        addresses = []

        def on_line(line):
            _, listens, rest = line.partition("listening on ")
            if listens:
                addresses.append(re.split("[ ,;]", rest)[0])

        server = self.start("the server", [
            *(command or [BIN / "cohort-server"]), f"--listen={listen}",
            "--ops_listen=", *flags], on_line, **environment)
        self.wait_until(lambda: addresses)
        return server, addresses[0]

    def wait_until(self, done):
        """Reads what the processes print until `done` returns true.
        Errors: Failed if one ends with another exit code than 0, as its peers
        usually wait for it, or after the time that there is for all."""
        while not done():
            for key, _ in self._outputs.select(timeout=0.02):
                self._read(key.data)
            if time.monotonic() > self._deadline:
                first = self._started[0]
                raise Failed(f"not done in time; {self._names[first]} said "
                             f"last: {self.last_line[first]}")

    def wait(self):
        """Until all have ended."""
        self.wait_until(lambda: not self._outputs.get_map())

    def _read(self, process):
        piece = os.read(process.stdout.fileno(), 1 << 16)
        *lines, self._rest[process] = (self._rest[process] + piece).split(b"\n")
        for line in lines:
            self.last_line[process] = line.decode(errors="replace")
            if self._on_line[process] is not None:
                self._on_line[process](self.last_line[process])
        if piece:
            return
        self._outputs.unregister(process.stdout)
        if process.wait() != 0 and process not in self.may_fail:
            raise Failed(f"{self._names[process]} ended with exit code "
                         f"{process.returncode}: {self.last_line[process]}")


def run(name, *command, **environment):
    """What a program prints that measures by itself."""
    numbers = Numbers()
    with Processes(patience_s=600) as processes:
        processes.start(name, command, numbers.add, **environment)
        processes.wait()
    return numbers


@contextlib.contextmanager
def busy_processes(count):
    """Processes that do nothing but take CPU time."""
    with Processes() as processes:
        for _ in range(count):
            processes.start("a busy process",
                            ["/bin/sh", "-c", "while kill -0 $PPID 2>/dev/null; do :; done"])
        yield


def cpu_seconds(who=resource.RUSAGE_SELF):
    """CPU time so far of this process, or of its children that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def cpu_of(pid):
    """CPU time so far of a process, to the nanosecond; 0 if it has ended."""
    try:
        # The number of that clock, as Linux defines it.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0


def in_turns(contenders, turns, tell=None, failed=None):
    """What each measures, name -> a value for each turn, so that a machine whose
    speed changes is fair to all. `contenders`: name -> function. `failed`: takes
    the name and error of one that fails, which is then left out; may raise."""
    measured = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(measured):
            try:
                measured[name].append(contenders[name]())
            except Failed as error:
                if failed is None:
                    raise
                failed(name, error)
                del measured[name]
                continue
            if tell is not None:
                tell(turn + 1, name, measured[name][-1])
    return measured


def over(values, others):
    """The median and range of the ratios of the same turn."""
    ratios = [own / other for own, other in zip(values, others)]
    return (f"{statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f})")


def quantile(values, q):
    """The q-quantile (0..1), nearest rank."""
    ordered = sorted(values)
    return ordered[min(max(math.ceil(q * len(ordered)), 1), len(ordered)) - 1]


def median(values):
    return quantile(values, 0.5)


class Table:
    """Prints rows as they come. A column is its head and the format of its
    values, such as "workers:<8" or "s/step:>10.4f"."""

    def __init__(self, *columns):
        heads, self._formats = zip(*(
            column.rsplit(":", 1) for column in columns))
        self._print(heads, (re.match(r"[<>]\d+", wanted)[0]
                            for wanted in self._formats))

    def row(self, *values):
        self._print(values, self._formats)

    @staticmethod
    def _print(values, formats):
        print(" ".join(map(format, values, formats)).rstrip(), flush=True)


def duel(labels, sides, turns, measure):
    """Prints two contenders that take turns, and the ratios of the second to the
    first. `sides`: their names; measure(label, side) -> what -> value."""
    table = Table(":<8", "what:<12", *(f"{side}:>14.4f" for side in sides),
                  "x:>20")
    for label in labels:
        measured = in_turns(
            {side: lambda side=side: measure(label, side) for side in sides},
            turns)
        for what in measured[sides[0]][0]:
            one, other = ([turn[what] for turn in measured[side]]
                          for side in sides)
            table.row(label, what, median(one), median(other),
                      over(other, one))
