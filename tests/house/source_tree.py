"""Files of the tree that the house rules read."""

import pathlib
from collections.abc import Iterator

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
