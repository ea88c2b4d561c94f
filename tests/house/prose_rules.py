#!/usr/bin/env python3
"""Counts words that give a foreign first draft away, in pages and in comments and
strings of sources.

prose.tsv has each word as a regular expression, what to write instead, and how
often it may be in pages and in sources. Both numbers only fall. Prints one line a
violation, with the places, and exits with 1 if there is any.
"""

import csv
import pathlib
import re
import sys

import source_tree
from style_rules import CODE, COMMENT_OR_STRING, HOUSE

TABLE = "tests/house/prose.tsv"
# Pages that programs make, and the past.
NOT_READ = frozenset({"CHANGELOG.md", "FLAGS.md", "METRICS.md", "VERBS.md",
                      "study.md"})
BRACES = CODE | {".proto", ".inc", ".js"}
HASHES = frozenset({".py", ".sh", ".cmake", ".yaml", ".yml", ".txt", ""})
HASH_OR_STRING = re.compile(
    r'"""(?:.|\n)*?"""|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')

Path = pathlib.PurePosixPath


def prose(path: Path, text: str) -> str:
    """The text of a page, or the comments and strings of a source."""
    if path.suffix == ".md":
        return "" if path.name in NOT_READ else text
    pattern = (COMMENT_OR_STRING if path.suffix in BRACES else
               HASH_OR_STRING if path.suffix in HASHES else None)
    # Without the marks of comments, so that lines join.
    return " ".join(piece.strip("/#* ")
                    for piece in pattern.findall(text)) if pattern else ""


def texts(root: pathlib.Path) -> dict[Path, str]:
    return {path: found for path in source_tree.files(root)
            if not source_tree.is_under(path, HOUSE) and
            (found := prose(path, source_tree.text(root, path)))}


def violations(root: pathlib.Path) -> list[str]:
    found = []
    read = texts(root)
    with open(root / TABLE, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        word = re.compile(rf"\b(?:{row['word']})\b")
        for kind in ("pages", "sources"):
            places = {str(path): count for path, text in read.items()
                      if (path.suffix == ".md") == (kind == "pages") and
                      (count := len(word.findall(text)))}
            if sum(places.values()) > int(row[kind]):
                found.append(
                    f"'{row['word']}' is {sum(places.values())} times in {kind}, "
                    f"want at most {row[kind]}; write {row['instead']}: "
                    f"{', '.join(sorted(places))}")
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations, lambda root: len(texts(root)),
        "prose rules: {count} texts read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
