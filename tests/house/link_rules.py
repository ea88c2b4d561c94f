#!/usr/bin/env python3
"""Checks the links of all Markdown pages, and the paths that they name.

A link to a file or heading of the tree must lead somewhere, and so must a path
in backticks that begins with a folder of the tree. It is relative to the root or
to the page, and may have wildcards or leave out the suffix. Links to other hosts
are not followed. Prints one line a violation and exits with 1 if there is any.
"""

import fnmatch
import pathlib
import re
import sys

import source_tree

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
CODE = re.compile(r"^(    .*|```.*?^```)$", re.M | re.S)
PICTURE = re.compile(r"(?:srcset|src)=\"([^\"]+)\"")
PATH = re.compile(r"`([\w.*-]+(?:/[\w.*-]+)*/?)`")
# Identities are written like paths: `server/0`, `worker/any`.
IDENTITY = re.compile(r"(server|worker)/(\d+|any)")


def anchors(text: str) -> set[str]:
    """The fragments under which links can reach a page's headings."""
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
            for heading in HEADING.findall(text)}


class _Paths:
    """The files and folders of a tree, also without the files' suffixes."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._known: set[str] = set()
        for path in source_tree.files(root):
            self._known |= {str(path), str(path.with_suffix("")),
                            *map(str, path.parents)}
        self._top = {path for path in self._known if "/" not in path}

    def missing(self, page: pathlib.PurePosixPath, prose: str) -> list[str]:
        """Those in backticks that are not there."""
        return [path for path in PATH.findall(prose)
                if "/" in path.rstrip("/") and not IDENTITY.fullmatch(path) and
                (path.split("/")[0] in self._top or
                 str(page.parent / path.split("/")[0]) in self._known) and
                not self._exists(path.rstrip("/")) and
                not self._exists(str(page.parent / path.rstrip("/")))]

    def _exists(self, path: str) -> bool:
        return path in self._known or (
            "*" in path and bool(fnmatch.filter(self._known, path)))


def violations(root: pathlib.Path) -> list[str]:
    found = []
    paths = _Paths(root)
    for page in source_tree.files(root):
        # The changelog names what is gone.
        if page.suffix != ".md" or page.name == "CHANGELOG.md":
            continue
        text = source_tree.text(root, page)
        prose = CODE.sub("", text)
        for link in LINK.findall(prose) + PICTURE.findall(prose):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = root / page.parent / path if path else root / page
            if not target.exists():
                found.append(f"{page}: {link} does not exist")
            elif anchor and target.suffix == ".md" and anchor not in anchors(
                    target.read_text(encoding="utf-8")):
                found.append(f"{page}: {link} is no heading there")
        found += [f"{page}: `{path}` does not exist"
                  for path in paths.missing(page, prose)]
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations,
        lambda root: sum(path.suffix == ".md"
                         for path in source_tree.files(root)),
        "link rules: {count} pages read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
