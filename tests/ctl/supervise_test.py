#!/usr/bin/env python3
"""cohortctl supervise, with programs that a test defines."""

import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"])
DEADLINE_S = 600
# What a program of Cohort does once it has made a step.
STEP = "echo -n + >&${COHORT_PROGRESS_FD%%:*}; "


class SuperviseTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, script: str, *flags: str) -> subprocess.Popen:
        return subprocess.Popen(
            [BIN / "cohortctl", "supervise", *flags, "--", "bash", "-c",
             f"echo x >>lives; {script}"],
            cwd=self.dir, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_script(self, script: str, *flags: str) -> tuple[int, str, str]:
        process = self.start(script, *flags)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def lives(self) -> int:
        return len((self.dir / "lives").read_text().splitlines())

    def test_ends_with_the_program_and_hands_its_output_through(self):
        code, out, err = self.run_script("echo out; echo err >&2")
        self.assertEqual((code, out, err, self.lives()), (0, "out\n", "err\n", 1))

    def test_starts_again_what_dies_and_gives_up_after_failed_starts(self):
        for end, code in (("kill -9 $$", 137), ("exit 1", 1), ("exit 75", 75)):
            with self.subTest(end=end):
                got, _, _ = self.run_script(end, "--max_restarts=2")
                self.assertEqual((got, self.lives()), (code, 3))
                (self.dir / "lives").unlink()

    def test_starts_after_a_step_do_not_count(self):
        code, _, err = self.run_script(
            f"[[ $(wc -l <lives) -gt 6 ]] && exit 0; {STEP} kill -9 $$",
            "--max_restarts=1")
        self.assertEqual((code, self.lives()), (0, 7), err)

    def test_a_final_code_is_final(self):
        for code in (2, 3, 4, 7, 8, 126, 127):
            with self.subTest(code=code):
                got, _, _ = self.run_script(f"exit {code}")
                self.assertEqual((got, self.lives()), (code, 1))
                (self.dir / "lives").unlink()

    def test_signals_are_the_programs(self):
        for number, end, code in ((signal.SIGTERM, "exit 143", 143),
                                  (signal.SIGINT, "exit 7", 7),
                                  (signal.SIGTERM, "exit 0", 0)):
            with self.subTest(end=end):
                process = self.start(
                    f"trap '{end}' {int(number)}; echo ready; "
                    "while :; do sleep 0.05; done")
                self.assertEqual(process.stdout.readline(), "ready\n")
                process.send_signal(number)
                process.communicate(timeout=DEADLINE_S)
                self.assertEqual((process.returncode, self.lives()), (code, 1))
                (self.dir / "lives").unlink()

    def test_what_a_dead_program_leaves_behind_is_ended(self):
        # The output ends when every process that could write to it has ended.
        code, _, _ = self.run_script("sleep 1000 & kill -9 $$",
                                     "--max_restarts=0")
        self.assertEqual(code, 137)

    def test_a_killed_supervisor_takes_the_program_with_it(self):
        process = self.start("echo ready; exec sleep 1000")
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.kill()
        process.communicate(timeout=DEADLINE_S)

    def test_a_program_is_needed(self):
        got = subprocess.run([BIN / "cohortctl", "supervise"], check=False,
                             capture_output=True)
        self.assertEqual(got.returncode, 3)


if __name__ == "__main__":
    unittest.main()
