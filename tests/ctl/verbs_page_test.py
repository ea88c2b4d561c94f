"""The page of all verbs, server/ctl/VERBS.md: what `cohortctl help` says.
`verbs_page_test.py --write` writes it."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(os.environ["COHORT_BIN_DIR"]) / "cohortctl"
PAGE = pathlib.Path(__file__).resolve().parents[2] / "server/ctl/VERBS.md"
HEADER = """# Verbs of cohortctl

This page is made from `cohortctl help` by `tests/ctl/verbs_page_test.py --write`; the test compares the two. The [guide](README.md) says when to use
which, [OUTPUT.md](OUTPUT.md) what they print.

"""


def help_text(*verb):
    return subprocess.run([PROGRAM, "help", *verb], check=True, text=True,
                          capture_output=True, timeout=60).stdout


def section(text, title):
    """The lines below a title, with continued lines joined."""
    lines = re.search(rf"^{title}:\n((?:  .*\n)+)", text, re.M)
    return re.sub(r"\n {6,}", " ", lines[1]).splitlines() if lines else []


def rows(lines):
    for line in lines:
        flag, meaning = line.split(maxsplit=1)
        yield f"| `{flag}` | {meaning} |\n"


def page():
    text = help_text()
    common = section(text, "Flags of all verbs")
    out = HEADER + "## Flags of all verbs\n\n| flag | meaning |\n|---|---|\n"
    out += "".join(rows(common))
    for line in section(text, "Verbs"):
        verb = re.split(r" {2,}", line.strip())[0]
        help_of = help_text(*verb.split())
        usage, summary = help_of.splitlines()[0].split(": ", 1)
        out += f"\n## {verb}\n\n`{usage}`: {summary}.\n\n"
        out += "".join(f"    {example.strip()}\n"
                       for example in section(help_of, "Examples"))
        own = [flag for flag in section(help_of, "Flags")
               if flag not in common]
        if own:
            out += "\n| flag | meaning |\n|---|---|\n" + "".join(rows(own))
    return out


class VerbsPage(unittest.TestCase):

    def test_the_page_is_what_the_program_says(self):
        self.maxDiff = None
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page())


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        unittest.main(verbosity=2)
