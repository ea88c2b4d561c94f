#!/usr/bin/env python3
"""Holds README.md's tables of flags against the flags that the code defines.

Prints one line a difference and exits with 1 if there is any.
"""

import argparse
import pathlib
import re
import sys

# Heading in README.md -> the file that defines the flags.
TABLES = {
    "## Flags of cohort-server": "server/main/server_main.cc",
    "## Flags of cohort-worker": "worker/train/worker_main.cc",
}

FLAG = re.compile(r"ABSL_FLAG\(\s*[\w:]+,\s*(\w+),\s*([^,]+?),\s*\"", re.S)
ROW = re.compile(r"^\| `--(\w+)` \| (?:`([^`]*)`)? *\|", re.M)
DURATION = re.compile(r"absl::(Milliseconds|Seconds|Minutes|Hours)\((\d+)\)$")
UNITS = {"Milliseconds": "ms", "Seconds": "s", "Minutes": "m", "Hours": "h"}


def shown(literal: str) -> str:
    """How a default of the code is written in the table."""
    duration = DURATION.match(literal)
    if duration:
        return duration.group(2) + UNITS[duration.group(1)]
    if re.fullmatch(r"[-+\d.e]+", literal):
        return f"{float(literal):g}"
    return literal.strip('"')


def defined_flags(text: str) -> dict[str, str]:
    return {name: shown(default) for name, default in FLAG.findall(text)}


def documented_flags(readme: str, heading: str) -> dict[str, str]:
    _, _, rest = readme.partition(heading + "\n")
    return dict(ROW.findall(rest.split("\n## ")[0]))


def differences(root: pathlib.Path) -> list[str]:
    readme = (root / "README.md").read_text(encoding="utf-8")
    found = []
    for heading, source in TABLES.items():
        defined = defined_flags((root / source).read_text(encoding="utf-8"))
        documented = documented_flags(readme, heading)
        if not defined:
            found.append(f"{source} defines no flags: has it moved?")
        for flag in sorted(defined.keys() | documented.keys()):
            code, table = defined.get(flag), documented.get(flag)
            if code != table:
                found.append(f"--{flag}: default {code!r} in {source}, "
                             f"{table!r} in README.md (None: no such flag)")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    found = differences(parser.parse_args().root)
    for line in found:
        print(line)
    print(f"readme flags: {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
