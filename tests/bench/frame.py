"""What the benchmarks of processes share: the programs, turns, ratios."""

import os
import pathlib
import resource
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
os.environ.setdefault("COHORT_BIN_DIR", str(ROOT / "build/release/bin"))
BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"]).resolve()


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


def in_turns(contenders, turns, tell=None):
    """What each measures, name -> a value for each turn, so that a machine whose
    speed changes is fair to all. `contenders`: name -> function."""
    measured = {name: [] for name in contenders}
    for turn in range(turns):
        for name, measure in contenders.items():
            measured[name].append(measure())
            if tell is not None:
                tell(turn + 1, name, measured[name][-1])
    return measured


def over(values, others):
    """The median and range of the ratios of the same turn."""
    ratios = [own / other for own, other in zip(values, others)]
    return (f"{statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f})")
