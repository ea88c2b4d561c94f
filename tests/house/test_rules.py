#!/usr/bin/env python3
"""Holds that the tests mirror the tree.

A source file has a test of its name in tests/, or a row in tested_in.tsv, which
names the tests that cover it. The files of main functions are tested as
processes. Prints one line a violation and exits with 1 if there is any.
"""

import csv
import pathlib
import re
import sys

import source_tree

TABLE = "tests/house/tested_in.tsv"


def sources(root: pathlib.Path) -> list[pathlib.PurePosixPath]:
    """The files that need a test."""
    return [path for path in source_tree.files(root)
            if path.suffix == ".cc" and path.parts[0] != "tests" and
            not path.stem.endswith("_main")]


def covered(root: pathlib.Path) -> dict[str, list[str]]:
    """The tests of each source in the table."""
    with open(root / TABLE, newline="", encoding="utf-8") as file:
        return {row["source"]: row["tests"].split()
                for row in csv.DictReader(file, delimiter="\t")}


def violations(root: pathlib.Path) -> list[str]:
    tested = {re.sub(r"_test$", "", path.stem)
              for path in source_tree.files(root)
              if path.parts[0] == "tests" and path.stem.endswith("_test")}
    rows = covered(root)
    found = []
    for path in sources(root):
        tests = rows.pop(str(path), None)
        if path.stem in tested:
            if tests is not None:
                found.append(f"{TABLE}: {path} has a {path.stem}_test: remove "
                             "the row")
        elif not tests:
            found.append(f"{path}: has no {path.stem}_test.cc and no row in "
                         f"{TABLE}")
        found += [f"{TABLE}: {test} does not exist"
                  for test in tests or () if not (root / test).exists()]
    return found + [f"{TABLE}: {path} does not exist" for path in rows]


def main() -> int:
    return source_tree.report(
        __doc__, violations, lambda root: len(sources(root)),
        "test rules: {count} source files read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
