#!/usr/bin/env python3
"""Holds that the tests mirror the tree.

A source file has a test of its name in tests/, or stands in the table "Tests"
of the nearest README, whose second column names the tests that cover it. The
files of main functions are tested as processes. Prints one line a violation
and exits with 1 if there is any.
"""

import pathlib
import re
import sys

import source_tree

SECTION = re.compile(r"^## Tests$(.*?)(?=^## |\Z)", re.M | re.S)
ROW = re.compile(r"^\| (.*?) \| (.*?) \|$", re.M)
CODE = re.compile(r"`([^`]+)`")


def sources(root: pathlib.Path) -> list[pathlib.PurePosixPath]:
    """The files that need a test."""
    return [path for path in source_tree.files(root)
            if path.suffix == ".cc" and path.parts[0] != "tests" and
            not path.stem.endswith("_main")]


def nearest_readme(root: pathlib.Path,
                   folder: pathlib.PurePosixPath) -> pathlib.PurePosixPath:
    for parent in (folder, *folder.parents):
        if (root / parent / "README.md").exists():
            return parent / "README.md"
    return pathlib.PurePosixPath("README.md")


def table(root: pathlib.Path, readme: pathlib.PurePosixPath
          ) -> tuple[set[str], set[str]]:
    """The sources and the tests that a README's table names."""
    if not (root / readme).exists():
        return set(), set()
    section = SECTION.search(source_tree.text(root, readme))
    rows = ROW.findall(section.group(1)) if section else []
    return ({name for left, _ in rows for name in CODE.findall(left)},
            {path for _, right in rows for path in CODE.findall(right)})


def violations(root: pathlib.Path) -> list[str]:
    tested = {re.sub(r"_test$", "", path.stem)
              for path in source_tree.files(root)
              if path.parts[0] == "tests" and path.stem.endswith("_test")}
    found = []
    readmes = set()
    for path in sources(root):
        readme = nearest_readme(root, path.parent)
        readmes.add(readme)
        if path.stem not in tested and path.stem not in table(root, readme)[0]:
            found.append(f"{path}: has no {path.stem}_test.cc, and the table "
                         f"\"Tests\" of {readme} does not name it")
    for readme in sorted(readmes):
        found += [f"{readme}: {test} does not exist"
                  for test in sorted(table(root, readme)[1])
                  if not (root / test).exists()]
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations, lambda root: len(sources(root)),
        "test rules: {count} source files read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
