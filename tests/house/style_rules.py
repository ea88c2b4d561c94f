#!/usr/bin/env python3
"""Checks the house rules that a line of text can break.

Prints one line a violation and exits with 1 if there is any.
"""

import pathlib
import re
import sys
from collections.abc import Callable, Iterator

import source_tree

CODE = frozenset({".h", ".cc", ".cu", ".cuh"})
SCRIPTS = frozenset({".py", ".sh", ".cmake"})
TEXTS = CODE | SCRIPTS | {".proto", ".md", ".txt", ".json", ".yml", ".yaml",
                          ".toml", ""}

# The checker and its fixtures contain the forbidden words.
HOUSE = "tests/house"

COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
OPEN_TASK = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
MACHINE_PATH = re.compile(
    r"(?<![\w./~$}-])/(home|root|work|workspace|mnt|media|Users)/")
SLEEP = re.compile(
    r"\b(sleep_for|sleep_until|SleepFor|usleep|nanosleep|sleep)\s*\(")
# Only as a statement of its own: a tensor's detach() has its result used.
DETACH = re.compile(r"(^\s*[\w.\[\]>*-]+|std::j?thread\b.*)\.detach\(\)")
NAKED_THREAD = re.compile(
    r"\bstd::(jthread|thread|async)\b(?!::)|\bpthread_create\b")
DISABLED_TEST = re.compile(r"\bDISABLED_\w+(?!.*#\d+)")
SILENT_SKIP = re.compile(r"GTEST_SKIP\(\)\s*;")

NAMESPACE_BEGIN = re.compile(r"namespace ?([\w:]*) ?\{$")
NAMESPACE_END = re.compile(r"\}  // namespace\b")
TYPE = re.compile(r"(?:class|struct|enum(?: class)?)\s+"
                  r"(?:ABSL_\w+(?:\([^)]*\))?\s+)?(\w+)(?:\s+final)?"
                  r"\s*(?::[^:]|:$|\{|$)")

Path = pathlib.PurePosixPath
Violation = tuple[int, str]


def without_comments(text: str) -> str:
    """Blanks comments and string contents, keeping every line number."""
    return COMMENT_OR_STRING.sub(
        lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def matches(pattern: re.Pattern[str], text: str, why: str
            ) -> Iterator[Violation]:
    for number, line in enumerate(text.splitlines(), 1):
        match = pattern.search(line)
        if match:
            yield number, f"'{match.group().strip()}': {why}"


def last_line(path: Path, text: str) -> Iterator[Violation]:
    # Inputs of the fuzz targets are the bytes that once failed.
    if source_tree.is_under(path, "tests/fuzz/regressions"):
        return
    if text and not text.endswith("\n"):
        yield text.count("\n") + 1, "the file does not end in a newline"


def pragma_once(path: Path, text: str) -> Iterator[Violation]:
    # Highway compiles an -inl header once per target, so it has its own guard.
    per_target = "HWY_TARGET_TOGGLE" in text
    if path.suffix in {".h", ".cuh"} and not per_target:
        if not re.search(r"^#pragma once$", text, re.M):
            yield 1, "a header without #pragma once"


def open_tasks(path: Path, text: str) -> Iterator[Violation]:
    if not source_tree.is_under(path, HOUSE):
        yield from matches(OPEN_TASK, text, "needs an issue number: TODO(#12)")


def machine_paths(path: Path, text: str) -> Iterator[Violation]:
    if not source_tree.is_under(path, HOUSE):
        yield from matches(MACHINE_PATH, text, "a path of one machine")


def concurrency(path: Path, text: str) -> Iterator[Violation]:
    """No sleep, no detach; threads are made in common/ (tests join theirs)."""
    if path.suffix not in CODE:
        return
    code = without_comments(text)
    if NAKED_THREAD.search(code):
        yield from matches(DETACH, code, "a thread nobody joins")
    if path.parts[:1] == ("common",):
        return
    yield from matches(SLEEP, code, "wait on a clock or a condition instead")
    if not source_tree.is_under(path, "tests"):
        yield from matches(NAKED_THREAD, code,
                           "use the named, joined tasks of common/")


def honest_tests(path: Path, text: str) -> Iterator[Violation]:
    if source_tree.is_under(path, "tests") and path.suffix in CODE:
        yield from matches(DISABLED_TEST, text,
                           "a disabled test names its issue on the same line")
        yield from matches(SILENT_SKIP, text, "a skip prints its reason")


RULES: tuple[Callable[[Path, str], Iterator[Violation]], ...] = (
    last_line, pragma_once, open_tasks, machine_paths, concurrency, honest_tests)


def types(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and full name of every type that a header defines outside
    of other types."""
    namespaces: list[str] = []
    raw = text.splitlines()
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        begin = NAMESPACE_BEGIN.match(line)
        if begin:
            namespaces.append(begin.group(1))
        elif NAMESPACE_END.match(raw[number - 1]) and namespaces:
            namespaces.pop()
        else:
            name = TYPE.match(line)
            if name:
                yield number, "::".join([*namespaces, name.group(1)])


def one_definition(root: pathlib.Path) -> Iterator[str]:
    """Two types of one name may end up in one program, where the linker keeps
    the functions of one of them. Tests are exempt, being many programs."""
    first: dict[str, Path] = {}
    for path in source_tree.files(root):
        if path.suffix != ".h" or source_tree.is_under(path, "tests"):
            continue
        for line, name in types(source_tree.text(root, path)):
            if first.setdefault(name, path) != path:
                yield f"{path}:{line}: {name}: {first[name]} defines it too"


def violations(root: pathlib.Path) -> list[str]:
    """Returns one 'file:line: what' for each broken rule."""
    found = list(one_definition(root))
    for path in source_tree.files(root):
        if path.suffix not in TEXTS:
            continue
        text = source_tree.text(root, path)
        for rule in RULES:
            found += [f"{path}:{line}: {what}"
                      for line, what in rule(path, text)]
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations,
        lambda root: sum(1 for _ in source_tree.files(root)),
        "style rules: {count} files read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
