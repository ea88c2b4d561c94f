#!/usr/bin/env python3
"""Limits how many source files reach LibTorch's headers, folder by folder.

The compiler reads mostly LibTorch's headers, so they decide how long a build
takes. A file counts if it includes them itself or through our headers.
Prints one line a folder that is over its ceiling and exits with 1 if any is.
"""

import collections
import functools
import pathlib
import sys

import include_rules
import source_tree

# Folder -> source files that may reach LibTorch; other folders may have none.
# Before raising a number, check whether the new code can take plain memory (a
# span, a pointer), or whether the header that brings LibTorch in can declare
# what it needs.
CEILINGS = {
    "worker/batch_norm": 8,  # The module itself, an autograd function.
    "worker/device": 5,  # Where tensors are: CPU, GPU, pinned memory.
    "worker/models": 11,  # Networks are LibTorch modules.
    "worker/train": 15,  # The step: forward, backward, losses, scores.
    "tests/worker/batch_norm": 6,
    "tests/worker/device": 1,
    "tests/worker/models": 3,
    "tests/worker/train": 16,
    "tests/integration": 4,  # The same training by LibTorch alone, to compare.
    "tests/bench": 1,
}


@functools.cache
def torch_files(root: pathlib.Path) -> dict[str, list[str]]:
    """Folder -> its source files that reach LibTorch's headers."""
    graph = include_rules.IncludeGraph(root)
    found = collections.defaultdict(list)
    for file in graph.files():
        if file.endswith(".cc") and any(
                include_rules.library_of(header) == "torch"
                for header in graph.library_chains(file)):
            found[str(pathlib.PurePosixPath(file).parent)].append(file)
    return found


def violations(root: pathlib.Path) -> list[str]:
    """Returns one sentence for each folder over its ceiling."""
    return [
        f"{folder}: {len(files)} source files reach LibTorch's headers, want "
        f"at most {CEILINGS.get(folder, 0)} (torch_ceiling.py says what to "
        f"try): {', '.join(files)}"
        for folder, files in sorted(torch_files(root).items())
        if len(files) > CEILINGS.get(folder, 0)]


def main() -> int:
    return source_tree.report(
        __doc__, violations,
        lambda root: sum(map(len, torch_files(root).values())),
        "torch ceiling: {count} source files reach LibTorch, {found} folders "
        "over their ceiling")


if __name__ == "__main__":
    sys.exit(main())
