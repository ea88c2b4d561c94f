#!/usr/bin/env python3
"""Checks sizes: lines of code by folder, methods and sources by class, words by
README.

sizes.tsv has what is allowed. Lowering a number is free; raising one, or adding a
class, needs a reason in its line. Prints one line a violation and exits with 1 if
there is any.
"""

import ast
import collections
import csv
import pathlib
import re
import sys

import source_tree
from style_rules import TYPE, without_comments

TABLE = "tests/house/sizes.tsv"
CODE = frozenset({".cc", ".h", ".cu", ".cuh", ".py", ".js", ".sh", ".proto",
                  ".inc"})
METHODS_MAX = 25
# What a reader can take in as a map of a folder.
WORDS_MAX = 900

DOCSTRING = re.compile(r'^\s*("""|\'\'\')(?:.|\n)*?\1\s*$', re.M)
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
DEFINITION = re.compile(r"^(?!\s|//|#)[^(;=]*?\b(\w+)::~?\w+\(", re.M)
LABEL = re.compile(r"\b(public|protected|private)\s*:(?!:)")
NO_METHOD = re.compile(r"\b(using|friend|typedef|static_assert)\b|\boperator\b")

Path = pathlib.PurePosixPath


def lines_of_code(path: Path, text: str) -> int:
    """Lines that are neither blank nor comment."""
    if path.suffix in {".py", ".sh"}:
        text, comment = DOCSTRING.sub("", text), "#"
    else:
        text, comment = BLOCK_COMMENT.sub("", text), "//"
    return sum(bool(line.strip()) and not line.strip().startswith(comment)
               for line in text.split("\n"))


def public_methods(text: str) -> dict[str, int]:
    """By class of a header, without constructors, destructors and operators."""
    code = without_comments(text)
    counts: dict[str, int] = {}
    lines = code.splitlines(keepends=True)
    at = 0
    for line in lines:
        match = TYPE.match(line)
        at += len(line)
        if not match or line.startswith("enum"):
            continue
        begin = code.find("{", at - len(line))
        semicolon = code.find(";", at - len(line))
        if begin < 0 or 0 <= semicolon < begin:
            continue  # A declaration.
        counts[match.group(1)] = _methods_in(
            match.group(1), code[begin + 1:], line.startswith("struct"))
    return counts


def _methods_in(name: str, body: str, public: bool) -> int:
    count, depth, statement = 0, 0, ""
    for character in body:
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth < 0:
                break
        if depth == 0 and character in ";}":
            for label in LABEL.finditer(statement):
                public = label.group(1) == "public"
            declared = LABEL.sub("", statement)
            named = re.search(r"(~?\w+)\s*\(", declared)
            count += (public and named is not None and
                      named.group(1) not in (name, f"~{name}") and
                      not NO_METHOD.search(declared))
            statement = ""
        elif depth == 0:
            statement += character
    return count


def public_methods_in_python(text: str) -> dict[str, int]:
    """The same of a Python source."""
    return {node.name: sum(isinstance(part, ast.FunctionDef) and
                           not part.name.startswith("_") for part in node.body)
            for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}


def _allowed(root: pathlib.Path) -> dict[tuple[str, str], int]:
    with open(root / TABLE, newline="", encoding="utf-8") as file:
        return {(row["kind"], row["name"]): int(row["most"])
                for row in csv.DictReader(file, delimiter="\t")}


def measured(root: pathlib.Path) -> dict[tuple[str, str], int]:
    """Lines by top folder; methods, sources and words that are above the
    limits."""
    found: dict[tuple[str, str], int] = collections.Counter()
    sources: dict[str, set[Path]] = collections.defaultdict(set)
    methods: dict[str, int] = {}
    for path in source_tree.files(root):
        if path.name == "README.md":
            words = len(source_tree.text(root, path).split())
            if words > WORDS_MAX:
                found["words", str(path)] = words
        if path.suffix not in CODE or len(path.parts) < 2:
            continue
        text = source_tree.text(root, path)
        found["lines", path.parts[0]] += lines_of_code(path, text)
        if path.parts[0] == "tests":
            continue
        if path.suffix == ".h":
            methods |= public_methods(text)
        elif path.suffix == ".py":
            methods |= public_methods_in_python(text)
        elif path.suffix == ".cc":
            for name in set(DEFINITION.findall(without_comments(text))):
                sources[name].add(path)
    for name, count in methods.items():
        if count > METHODS_MAX:
            found["methods", name] = count
        if len(sources[name]) > 1:
            found["sources", name] = len(sources[name])
    return found


def violations(root: pathlib.Path) -> list[str]:
    allowed = _allowed(root)
    found = []
    for (kind, name), count in sorted(measured(root).items()):
        most = allowed.pop((kind, name), None)
        if most is None:
            found.append(f"{name}: {count} {kind}, want "
                         f"{'a line in ' + TABLE if kind == 'lines' else 'fewer'}")
        elif count > most:
            found.append(f"{name}: {count} {kind}, want at most {most} ({TABLE})")
    found += [f"{TABLE}: {kind} of {name} are within the limit now: remove the line"
              for kind, name in allowed]
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations, lambda root: len(measured(root)),
        "size rules: {count} folders, classes and pages measured, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
