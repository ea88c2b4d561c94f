"""Files of the tree that the house rules read."""

import argparse
import pathlib
from collections.abc import Callable, Iterator

# Written by builds, runs and tools; never by hand.
SKIPPED_FOLDERS = frozenset(
    {".git", ".cache", "__pycache__", "build", "results"})


def files(root: pathlib.Path) -> Iterator[pathlib.PurePosixPath]:
    """Yields every hand-written file, relative to root, in path order."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.isdisjoint(relative.parts) and path.is_file():
            yield pathlib.PurePosixPath(relative.as_posix())


def text(root: pathlib.Path, path: pathlib.PurePosixPath) -> str:
    """Returns a file's text; bytes that are not UTF-8 become U+FFFD."""
    return (root / path).read_text(encoding="utf-8", errors="replace")


def is_under(path: pathlib.PurePosixPath, folder: str) -> bool:
    """Says whether path lies in folder ("" is the root)."""
    parts = pathlib.PurePosixPath(folder).parts
    return path.parts[:len(parts)] == parts


def report(doc: str, violations: Callable[[pathlib.Path], list[str]],
           count: Callable[[pathlib.Path], int], summary: str) -> int:
    """The main function of a rule: prints the violations, and `summary` with
    {count} and {found}. Returns the exit status; a tree with nothing to
    count is taken for a wrong --root."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    root = parser.parse_args().root
    found = violations(root)
    for line in found:
        print(line)
    counted = count(root)
    print(summary.format(count=counted, found=len(found)))
    if counted == 0:
        print(f"{root} holds nothing that this rule is about: is it the root "
              "of the tree?")
    return 1 if found or counted == 0 else 0
