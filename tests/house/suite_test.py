#!/usr/bin/env python3
"""tests/run: its parts, the tests that each runs, and the output."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("format", "clang", "tidy", "asan", "tsan", "sim", "kills", "tls",
         "fuzz", "wheel", "zoo", "trainers", "mutants", "soak", "endurance",
         "engines", "images")
PIECES = {"tidy": 4, "asan": 4, "kills": 3, "mutants": 8}
# Commits after which a part has to have passed.
COMMITS_MAX = 60

# Replaces cmake and ctest: records its arguments, and fails if told to.
TOOL = r"""#!/bin/bash
echo "$(basename "$0") $* seeds=${COHORT_SIM_SEEDS-} kills=${COHORT_KILLS-}" \
  >>"$NOTES"
[[ "$(basename "$0")" != "${FAILING-}" ]]
"""


class SuiteTest(unittest.TestCase):
    """Runs a copy of the script in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("tests/run", "tests/parts.tsv", "deploy/install-deps"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        tools = self.root / "tools"
        tools.mkdir()
        for folder in ("python", "engines"):
            env = self.root / f"tests/{folder}/make-env"
            env.parent.mkdir()
            env.write_text(TOOL)
            env.chmod(0o755)
        for name in ("cmake", "ctest"):
            (tools / name).write_text(TOOL)
            (tools / name).chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:{os.environ['PATH']}", "COHORT_SKIP_DEPS": "1",
            "NOTES": str(self.root / "notes"),
            **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER")
               for what in ("NAME", "EMAIL")}}

    def run_script(self, *arguments: str, **environment: str
                   ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.root / "tests/run", *arguments], capture_output=True,
            text=True, timeout=60, check=False,
            env={**self.environment, **environment})

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.root, check=True, text=True,
            capture_output=True, env=self.environment).stdout.strip()

    def commit(self) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--all", "--message=x")
        return self.git("rev-parse", "--short=12", "HEAD")

    def start_history(self, **passed: str) -> None:
        """Commits the folder, and a table of these parts and commits."""
        self.git("init", "--quiet")
        (self.root / ".gitignore").write_text("notes\n")
        self.git("add", ".")
        self.commit()
        self.write_rows(**passed)

    def write_rows(self, **passed: str) -> None:
        (self.root / "tests/parts.tsv").write_text(
            "part\tcommit\tminutes\tfound\n" + "".join(
                f"{part}\t{commit}\t7\ta bug\n"
                for part, commit in passed.items()))
        self.commit()

    def row(self, part: str) -> list[str]:
        for line in (self.root / "tests/parts.tsv").read_text().splitlines():
            if line.startswith(f"{part}\t"):
                return line.split("\t")
        self.fail(f"no row {part}")

    def listed(self, *arguments: str) -> list[str]:
        result = self.run_script("--list", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines()

    def notes(self) -> list[str]:
        notes = self.root / "notes"
        return notes.read_text().splitlines() if notes.exists() else []

    def test_help_lists_every_part_with_what_it_does(self):
        result = self.run_script("--help")
        self.assertEqual(result.returncode, 0)
        listed = re.findall(r"^  (\w+) +\w.*", result.stdout, re.M)
        self.assertEqual(listed, list(PARTS))

    def test_unknown_part_is_refused_with_the_list(self):
        for parts in ("fromat", "sim,fromat", "fromat,sim"):
            result = self.run_script(f"--only={parts}")
            self.assertEqual(result.returncode, 2)
            self.assertIn("there is no part 'fromat'", result.stderr)
            for part in PARTS:
                self.assertIn(f"\n  {part} ", result.stderr)
        self.assertEqual(self.notes(), [])

    def test_command_line_without_sense_is_refused(self):
        for arguments in (["--only="], ["--only=,"], ["--only"], ["sim"],
                          ["--only=sim", "--full"], ["--quick", "--next"],
                          ["--only=mutants-9"], ["--only=mutants-"],
                          ["--only=sim-1"],
                          ["--only=sim", "--only=kills"]):
            with self.subTest(arguments=arguments):
                result = self.run_script(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn("usage:", result.stderr)
        self.assertEqual(self.notes(), [])

    def test_list_runs_nothing(self):
        self.listed("--full")
        self.assertEqual(self.notes(), [])

    def test_normal_suite_is_the_release_build_and_no_test_of_a_part(self):
        lines = self.listed()
        self.assertEqual([line.split("  ")[0].strip() for line in lines],
                         ["install", "python", "release: configure",
                          "release: build", "release: tests"])
        self.assertIn("install-deps test", lines[0])
        self.assertIn("--label-exclude ^part:", lines[-1])

    def test_only_runs_that_part_alone(self):
        self.assertEqual(
            self.listed("--only=format"),
            ["install               deploy/install-deps full",
             "format: sources       check_format",
             "format: scripts       check_scripts"])

    def test_several_parts_run_in_the_order_given(self):
        tests = [line for line in self.listed("--only=tsan,sim")
                 if "ctest" in line]
        self.assertEqual([line.split()[0] for line in tests], ["tsan:", "sim"])

    def test_full_is_the_normal_suite_and_every_part(self):
        lines = self.listed("--full")
        expected = self.listed()[1:]
        for part in PARTS:
            expected += self.listed(f"--only={part}")[1:]
        self.assertEqual(lines[1:], expected)
        self.assertIn("install-deps full", lines[0])

    def test_part_reaches_its_tests_with_its_repetitions(self):
        result = self.run_script("--only=sim,kills")
        self.assertEqual(result.returncode, 0, result.stderr)
        sim, kills = (note for note in self.notes() if note.startswith("ctest"))
        self.assertIn("seeds=10000", sim)
        self.assertIn("kills=10", kills)
        self.assertIn("--repeat until-fail:2", kills)

    def test_own_number_of_seeds_is_kept(self):
        self.run_script("--only=sim", COHORT_SIM_SEEDS="77")
        self.assertIn("seeds=77", self.notes()[-1])

    def test_times_are_printed_at_the_end(self):
        result = self.run_script()
        self.assertEqual(result.returncode, 0, result.stderr)
        table = result.stdout.split("== Time taken, min:s\n")[1]
        self.assertEqual(re.sub(r"\d+:\d\d", "T", table).split("\n"), [
            "   T  install", "   T  python", "   T  release: configure",
            "   T  release: build", "   T  release: tests", "   T  all", ""])

    def test_failure_ends_the_run_and_still_shows_the_times(self):
        result = self.run_script("--full", FAILING="ctest")
        self.assertEqual(result.returncode, 1)
        self.assertIn("  release: tests (failed)\n", result.stdout)
        self.assertNotIn("passed", result.stdout)
        self.assertEqual(len(self.notes()), 4)

    def test_quick_is_the_build_and_some_tests(self):
        lines = self.listed("--quick")
        self.assertIn("release: build", lines[-2])
        self.assertIn("cohort_core_test", lines[-1])

    def test_a_piece_is_a_part_of_its_part(self):
        self.assertIn("--piece=3/8", self.listed("--only=mutants-3")[-1])
        self.assertNotIn("--piece", self.listed("--only=mutants")[-1])

    def test_next_is_the_part_that_passed_longest_ago(self):
        self.start_history()
        old = self.commit()
        self.write_rows(kills=self.commit(), sim=old, tsan=old)
        result = self.run_script("--next")
        self.assertEqual(result.returncode, 0, result.stderr)
        _, commit, minutes, found = self.row("sim")
        self.assertEqual((commit, found),
                         (self.git("rev-parse", "--short=12", "HEAD"), "a bug"))
        self.assertIn(minutes, ("0", "1"))
        self.assertEqual(self.row("tsan")[1:], [old, "7", "a bug"])
        self.assertIn("tsan: tests", "".join(self.listed("--next")))

    def test_a_part_that_never_passed_is_before_all_others(self):
        self.start_history()
        self.write_rows(sim=self.commit(), kills="-", tsan="-")
        self.assertIn("kills ", "".join(self.listed("--next")))
        self.assertIn("sim ", "".join(self.listed("--again")))
        self.write_rows(kills="-")
        self.assertEqual(self.listed("--again"), [
            "tests/parts.tsv: no part is known to have passed; nothing is run"])

    def test_a_part_that_fails_stays_next(self):
        self.start_history()
        old = self.commit()
        self.write_rows(sim=old)
        self.assertEqual(self.run_script("--next", FAILING="ctest").returncode,
                         1)
        self.assertEqual(self.row("sim")[1], old)

    def test_nothing_is_entered_for_a_changed_tree(self):
        self.start_history()
        old = self.commit()
        self.write_rows(sim=old)
        with open(self.root / "tests/run", "a", encoding="utf-8") as script:
            script.write("# changed\n")
        result = self.run_script("--next")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.row("sim")[1], old)

    def test_without_a_registry_a_part_has_not_passed(self):
        self.start_history()
        old = self.commit()
        self.write_rows(zoo=old)
        python = self.root / "tools/python3"
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
        result = self.run_script("--next")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Not run: zoo", result.stdout)
        self.assertEqual(self.row("zoo")[1], old)

    def test_without_a_base_image_the_images_have_not_passed(self):
        tool = self.root / "tests/deploy/make-base"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\nexit 1\n")
        tool.chmod(0o755)
        python = self.root / "tools/python3"
        # An environment with a pip that downloads.
        python.write_text('#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$3/bin" && '
                          'cp /bin/true "$3/bin/pip"\n')
        python.chmod(0o755)
        result = self.run_script("--only=images")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Not run: images", result.stdout)
        self.assertIn("no base image", result.stdout)

    def test_the_table_has_every_part_and_piece(self):
        wanted = []
        for part in PARTS:
            pieces = PIECES.get(part, 1)
            wanted += [part] if pieces == 1 else [
                f"{part}-{piece}" for piece in range(1, pieces + 1)]
        rows = [line.split("\t") for line in
                (ROOT / "tests/parts.tsv").read_text().splitlines()]
        self.assertEqual([row[0] for row in rows[1:]], wanted)
        self.assertEqual({len(row) for row in rows}, {4})

    def test_some_part_has_passed_lately(self):
        def git(*arguments: str) -> str:
            return subprocess.run(["git", *arguments], cwd=ROOT, check=False,
                                  capture_output=True, text=True).stdout.strip()
        if git("rev-parse", "--is-shallow-repository") != "false":
            self.skipTest("the history is not here")
        ages = [git("rev-list", "--count", f"{line.split()[1]}..HEAD")
                for line in (ROOT / "tests/parts.tsv").read_text().splitlines()]
        self.assertLessEqual(min(int(age) for age in ages if age), COMMITS_MAX,
                             "run tests/run --next")

    def test_tests_of_parts_name_a_part_that_there_is(self):
        for file in (ROOT / "tests").rglob("CMakeLists.txt"):
            for part in re.findall(r"\bpart:(\w+)", file.read_text()):
                self.assertIn(part, (*PARTS, "quick"), file)

    def test_labels_that_parts_ask_for_exist(self):
        labels = " ".join(file.read_text() for file in
                          (ROOT / "tests").rglob("CMakeLists.txt"))
        for label in ("sim", "processes", "house", "deploy", "browser",
                      "bench", "gpu"):
            self.assertRegex(labels, rf"LABELS {label}\b")


if __name__ == "__main__":
    unittest.main()
