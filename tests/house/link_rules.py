#!/usr/bin/env python3
"""Checks the links of all Markdown pages, and the length of the root README.

A link to a file or heading of the tree must lead somewhere. Links to other
hosts are not followed. Prints one line a violation and exits with 1 if there
is any.
"""

import pathlib
import re
import sys

import source_tree

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
CODE = re.compile(r"^(    .*|```.*?^```)$", re.M | re.S)
PICTURE = re.compile(r"(?:srcset|src)=\"([^\"]+)\"")
# The number of words a reader can take in before the first command.
README_WORDS_MAX = 900


def anchors(text: str) -> set[str]:
    """The fragments under which links can reach a page's headings."""
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
            for heading in HEADING.findall(text)}


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for page in source_tree.files(root):
        if page.suffix != ".md":
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
    readme = root / "README.md"
    words = len(readme.read_text(encoding="utf-8").split()) \
        if readme.exists() else 0
    if words > README_WORDS_MAX:
        found.append(f"README.md: {words} words, want at most "
                     f"{README_WORDS_MAX}: a handbook page is the place")
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations,
        lambda root: sum(path.suffix == ".md"
                         for path in source_tree.files(root)),
        "link rules: {count} pages read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
