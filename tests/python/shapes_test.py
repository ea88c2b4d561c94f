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
import pathlib
import sys
import textwrap
import time
import warnings

import torch

from shapes import (by_hand, derivatives, meetings, models, refusals, rows,
                    runner, statistics, supervised, teachers)

assert all((by_hand, derivatives, meetings, models, refusals, statistics,
            supervised, teachers))


def available(needs: str) -> bool:
    """Whether this torch has it."""
    return not needs or {
        "func": hasattr(torch, "func"),
        "compile": hasattr(torch, "compile")}[needs]


def shown(outcomes: list[runner.Outcome]) -> str:
    """A row's line."""
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    texts = {outcome.workers: outcome.text.splitlines()[0] if outcome.text else ""
             for outcome in outcomes}
    text = "; ".join(f"{workers}: {text}" for workers, text in texts.items())
    mark = "   " if all(outcome.passed for outcome in outcomes) else "!! "
    return f"{mark}{'/'.join(kinds):10} {outcomes[0].row.name:44} {text[:400]}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    options = parser.parse_args()
    unknown = set(options.rows) - set(rows.TABLE)
    if unknown:
        parser.error(f"no rows {', '.join(sorted(unknown))}; see --list")
    chosen = [rows.TABLE[name] for name in options.rows or rows.TABLE]
    if options.list:
        for row in chosen:
            want = "right" if row.refused is None else (
                f"{'right, or ' if row.or_right else ''}{row.refused.error}: "
                f"{', '.join(row.refused.words)}")
            print(f"{row.name:44} {want}")
        return 0
    warnings.simplefilter("ignore")
    skipped = [row.name for row in chosen if not available(row.needs)]
    chosen = [row for row in chosen if available(row.needs)]
    began = time.monotonic()
    found: dict[str, list[runner.Outcome]] = collections.defaultdict(list)
    for outcome in runner.run_all(chosen, pathlib.Path(os.environ["COHORT_BIN_DIR"]),
                                  options.together):
        outcomes = found[outcome.row.name]
        outcomes.append(outcome)
        if options.verbose and not outcome.passed:
            print(f"---- {outcome.row.name}, {outcome.workers} workers: "
                  f"{outcome.kind} {outcome.text}\n" +
                  textwrap.indent(outcome.detail, "    | "))
        if len(outcomes) == len(outcome.row.sizes):
            outcomes.sort(key=lambda outcome: outcome.workers)
            print(shown(outcomes), flush=True)
    worst = collections.Counter(
        next((o.kind for o in outcomes if not o.passed), outcomes[0].kind)
        for outcomes in found.values())
    failed = [name for name, outcomes in found.items()
              if not all(outcome.passed for outcome in outcomes)]
    print(f"\n{len(found)} rows in {time.monotonic() - began:.0f} s: " + ", ".join(
        f"{count} {kind}" for kind, count in worst.most_common()))
    if skipped:
        print(f"not with torch {torch.__version__}: {', '.join(skipped)}")
    if failed:
        print(f"{len(failed)} not as the table asks: {' '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
