#!/usr/bin/env python3
"""Training shapes: each trains as one process with all batches would, or is
refused by name.

usage: shapes_test.py [--list] [--together=N] [--verbose] [ROW...]

Each row of the table (shapes/*.py) is a short training script. It is run by two
and by three workers with uneven batches, a process a worker, and by one process
with the batches of all, in float32 and in float64. Every weight, statistic and
value that the row names has to be as near to float64 as 20 times the float32
process. A row that is refused has to end with the error that the table names.

Prints a line for each row:
  right     numbers are those of one process; the greatest part of the 20
  refused   with the error of the table
  WRONG     other numbers, or numbers where an error is due
  HANG      no end within 20 s
  error     another error
The exit code is 0 if each row has the result that the table asks for. Needs
COHORT_BIN_DIR and a PYTHONPATH with the package, as all tests here.
"""

import os

# One thread a process; before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import collections
import functools
import importlib
import pathlib
import pkgutil
import signal
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence

import torch

if hasattr(torch, "compile"):
    # torch imports it at the first step of an optimizer, which each process
    # would do by itself.
    import torch._dynamo.backends.debugging
    import torch._functorch.aot_autograd

import shapes
from shapes import rows, runner

# Each module adds its rows to the table.
for module in pkgutil.iter_modules(shapes.__path__):
    importlib.import_module(f"shapes.{module.name}")


def available(row: rows.Row) -> bool:
    """Whether this torch has what the row needs."""
    return not row.needs or {
        "func": hasattr(torch, "func"),
        "optimizer hooks": hasattr(torch.optim.Optimizer,
                                   "register_step_pre_hook"),
        "compile": hasattr(torch, "compile")}[row.needs]


def chosen(parser: argparse.ArgumentParser,
           names: Sequence[str]) -> list[rows.Row]:
    """The rows of these names that this torch can run."""
    unknown = set(names) - set(rows.TABLE)
    if unknown:
        parser.error(f"no rows {', '.join(sorted(unknown))}; see --list")
    found = [rows.TABLE[name] for name in names]
    for row in found:
        if not available(row):
            print(f"   not with torch {torch.__version__}: {row.name}")
    return [row for row in found if available(row)]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--together", type=int, default=4,
                        help="runs at a time")
    parser.add_argument("--verbose", action="store_true",
                        help="traces and the server's log of what failed")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    return parser


def line_of(outcomes: list[runner.Outcome]) -> str:
    """A row's line."""
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    text = "; ".join(f"{outcome.title}: {(outcome.text.splitlines() or [''])[0]}"
                     for outcome in outcomes)
    mark = "   " if all(outcome.passed for outcome in outcomes) else "!! "
    return f"{mark}{'/'.join(kinds):10} {outcomes[0].row.name:44} {text[:400]}"


def report(trials: Sequence[Callable[[], runner.Trial]],
           options: argparse.Namespace) -> int:
    """Runs them and prints a line a row; the exit code."""
    # Ends servers and workers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    warnings.simplefilter("ignore")
    began = time.monotonic()
    wanted = collections.Counter(trial.args[0].name for trial in trials)
    found: dict[str, list[runner.Outcome]] = collections.defaultdict(list)
    for outcome in runner.run_all(trials, options.together):
        outcomes = found[outcome.row.name]
        outcomes.append(outcome)
        if options.verbose and not outcome.passed:
            print(f"---- {outcome.row.name}, {outcome.title}: {outcome.kind} "
                  f"{outcome.text}\n{textwrap.indent(outcome.detail, '    | ')}")
        if len(outcomes) == wanted[outcome.row.name]:
            outcomes.sort(key=lambda outcome: outcome.title)
            print(line_of(outcomes), flush=True)
    kinds = collections.Counter(
        next((o.kind for o in outcomes if not o.passed), outcomes[0].kind)
        for outcomes in found.values())
    failed = [name for name, outcomes in found.items()
              if not all(outcome.passed for outcome in outcomes)]
    print(f"\n{len(found)} rows in {time.monotonic() - began:.0f} s: " + ", ".join(
        f"{count} {kind}" for kind, count in kinds.most_common()))
    if failed:
        print(f"{len(failed)} not as the table asks: {' '.join(failed)}")
    return int(bool(failed))


def main() -> int:
    parser = arguments()
    parser.add_argument("--list", action="store_true",
                        help="prints what the table asks for, and runs nothing")
    options = parser.parse_args()
    names = options.rows or list(rows.TABLE)
    if options.list:
        for row in (rows.TABLE[name] for name in names):
            want = "right" if row.refused is None else (
                f"{'right, or ' if row.or_right else ''}{row.refused.error}: "
                f"{', '.join(row.refused.words)}")
            print(f"{row.name:44} {want}")
        return 0
    bin_dir = pathlib.Path(os.environ["COHORT_BIN_DIR"])
    return report([functools.partial(runner.Trial, row, workers, bin_dir)
                   for row in chosen(parser, names) for workers in row.sizes],
                  options)


if __name__ == "__main__":
    sys.exit(main())
