#!/usr/bin/env python3
"""One table of exit codes: the one of the programs, that of OPERATIONS.md, and
the lists of everything that starts processes again."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# Outcomes that are no fixed code.
OPEN = {"`--stopped_exit_code`", "128 + n"}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def table_of_programs() -> dict[int, bool]:
    """Whether a code is final, by code."""
    codes = {name: int(number) for name, number in re.findall(
        r"(kExit\w+) = (\d+),", read("common/exit_codes.h"))}
    final = re.findall(r"case (kExit\w+):", read("common/exit_codes.cc"))
    return {code: name in final for name, code in codes.items()}


def numbers(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


class ExitCodesTest(unittest.TestCase):
    def setUp(self):
        self.table = table_of_programs()
        self.final = {code for code, final in self.table.items() if final}
        self.assertEqual(len(self.table), 13)

    def test_operations_has_the_same_rows(self):
        section = read("deploy/OPERATIONS.md").split("## Exit codes")[1]
        shown = {}
        for row in re.findall(r"^\| (?!code|---)(.*) \|$", section.split("\n## ")[0],
                              re.M):
            cells = [cell.strip() for cell in row.split("|")]
            if cells[0] in OPEN:
                continue
            for code in numbers(cells[0]):
                shown[code] = cells[-1] == "no"
        self.assertEqual(shown, self.table)

    def test_help_of_cohortctl_and_its_page_have_the_same_codes(self):
        table = read("server/ctl/OUTPUT.md").split("## JSON")[0]
        shown = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)]
        text = read("server/ctl/help.cc").split("Exit codes: ")[1].split("`run`")[0]
        self.assertEqual(sorted(numbers(text)), shown)
        self.assertLessEqual(set(shown), set(self.table))

    def test_kubernetes_stops_at_final_codes(self):
        lists = [
            (path, found) for path in DEPLOY.rglob("*.yaml")
            for found in re.findall(r"onExitCodes: \{.*values: \[(.*)\]\}",
                                    path.read_text(encoding="utf-8"))]
        self.assertEqual(len(lists), 3)
        for path, found in lists:
            with self.subTest(path=path):
                self.assertEqual(numbers(found), self.final)

    def test_systemd_stops_at_final_codes(self):
        for unit in ("cohort-server", "cohort-shard", "cohort-worker@"):
            with self.subTest(unit=unit):
                found, = re.findall(r"^RestartPreventExitStatus=(.*)$",
                                    read(f"deploy/systemd/{unit}.service"), re.M)
                self.assertEqual(numbers(found), self.final)

    def test_slurm_stops_at_final_codes(self):
        found, = re.findall(r"^ +([\d |]+)\) return 0", read(
            "deploy/slurm/requeue.sh"), re.M)
        self.assertEqual(numbers(found), self.final)


if __name__ == "__main__":
    unittest.main()
