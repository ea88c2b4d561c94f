"""The comparison with other systems: what is missing is named, what is there is
measured. Programs of ps-lite are replaced by ones that print given times."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "integration"))

# pylint: disable=wrong-import-position
from processes import python_with_torch  # noqa: E402

BENCH = pathlib.Path(__file__).with_name("cohort_bench.py")
TINY = ("--table=peers", "--elements=1000", "--steps=2", "--rounds=20",
        "--pairs=1")
NO_TORCH = "--python=/bin/false"

# Notes how it was started, beside itself, and prints what was wished for its
# role.
FAKE = """#!{python} -B
import json, os, pathlib, sys
wished = json.loads({wished!r})
role = os.environ["DMLC_ROLE"]
with open(__file__ + ".starts", "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
lines, code = wished.get(role, ["", 0])
print(lines)
sys.exit(code)
"""


def seconds_of(text):
    """Contender, workers -> seconds of a step."""
    return {(row[1], int(row[2])): float(row[3]) for row in re.finditer(
        r"^(\w[\w -]+?) +([12]) +(\d+\.\d{4}) ", text, re.M)}


class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = pathlib.Path(folder.name) / "benchmark"

    def write_program(self, **wished):
        """Role -> what a process of it prints, and its exit code."""
        self.program.write_text(FAKE.format(python=sys.executable,
                                            wished=json.dumps(wished)))
        self.program.chmod(0o755)
        return f"--ps_lite_program={self.program}"

    def starts(self):
        """Arguments and variables of each process that was started."""
        text = pathlib.Path(f"{self.program}.starts").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def bench(self, *flags, code=0):
        told = subprocess.run(
            [sys.executable, "-B", BENCH, *TINY, *flags], timeout=600,
            capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, code, told.stdout + told.stderr)
        return told.stdout + told.stderr

    def test_what_is_missing_is_skipped_with_what_to_do(self):
        text = self.bench(NO_TORCH)
        self.assertIn("gloo: skipped", text)
        self.assertIn("ps-lite: skipped: pass --ps_lite_program=PATH", text)
        self.assertEqual(set(seconds_of(text)), {
            (name, workers) for workers in (1, 2) for name in
            ("Cohort shm", "Cohort tcp", "memory copy", "bare TCP")})

    def test_program_of_ps_lite_is_started_in_its_roles(self):
        flag = self.write_program(
            worker=["step 9\nstep 9\nstep 0.25\nstep 0.5\nstep 0.25", 0])
        rows = seconds_of(self.bench(NO_TORCH, flag))
        for workers in (1, 2):
            # The first two map fresh memory.
            self.assertEqual(rows["ps-lite", workers], 0.25)
        by_port = {}
        for arguments, variables in self.starts():
            self.assertEqual(arguments, ["4000", "4", "1"])
            self.assertEqual(variables["NUM_KEY_PER_SERVER"], "1")
            self.assertEqual(variables["TOTAL_DURATION"], "4")
            self.assertEqual(variables["DMLC_PS_ROOT_URI"], "127.0.0.1")
            by_port.setdefault(
                (variables["DMLC_NUM_WORKER"], variables["DMLC_PS_ROOT_PORT"]),
                []).append(variables["DMLC_ROLE"])
        self.assertEqual(
            {workers: sorted(roles)
             for (workers, _), roles in by_port.items()},
            {"1": ["scheduler", "server", "worker"],
             "2": ["scheduler", "server", "worker", "worker"]})

    def test_lines_of_upstreams_benchmarks_are_read(self):
        goodput = "[0]\tApplication goodput: 0.00032 Gbps.\tAvg latency = 1 ns"
        # 4,000 bytes at 320,000 bits a second.
        flag = self.write_program(
            worker=["\n".join(f"[1:2:3] a.cc:4: {goodput}" for _ in "abcd"),
                    0])
        self.assertEqual(
            seconds_of(self.bench(NO_TORCH, flag))["ps-lite", 1], 0.1)
        # For 1,000 of 10 million: 0.1 and 0.3 s.
        flag = self.write_program(worker=[
            "a.cc:62: num = 10000000, Push average time cost: 1000000ms\n"
            "a.cc:71: num = 10000000, Pull average time cost: 3000000ms", 0])
        self.assertEqual(
            seconds_of(self.bench(NO_TORCH, flag))["ps-lite", 1], 0.4)

    def test_program_of_ps_lite_that_fails_is_named_after_the_other_rows(self):
        for role, lines, code, message in (
                ("server", "Check failed: a", 3,
                 "ps-lite: failed: ps-lite's server ended with exit code 3: "
                 "Check failed: a"),
                ("worker", "hello", 0,
                 "printed no times in its worker; want lines such as")):
            with self.subTest(role=role):
                flag = self.write_program(**{role: [lines, code]})
                text = self.bench(NO_TORCH, flag, code=1)
                self.assertIn(message, text)
                self.assertIn(("bare TCP", 2), seconds_of(text))
                self.assertNotIn(("ps-lite", 1), seconds_of(text))

    def test_program_of_ps_lite_that_is_not_there_is_refused(self):
        text = self.bench(NO_TORCH, "--ps_lite_program=/nowhere", code=1)
        self.assertIn('--ps_lite_program: got "/nowhere", want an executable',
                      text)

    def test_gloo_takes_turns_where_pytorch_is_there(self):
        python = python_with_torch()
        if python is None:
            self.skipTest("no python3 here has PyTorch: python3-torch")
        text = self.bench(f"--python=/bin/false,{python}", "--load=1")
        self.assertIn("1 busy processes beside", text)
        self.assertNotIn("gloo: skipped", text)
        rows = seconds_of(text)
        for name in ("gloo all-reduce", "DDP over gloo"):
            self.assertGreater(rows[name, 2], 0)
            self.assertNotIn((name, 1), rows)
        self.assertRegex(text, r"\nCohort shm +[\d.]+ +1\.00")
        self.assertRegex(text.partition("rendezvous")[2],
                         r"\ngloo all-reduce +[\d.]+ ")


if __name__ == "__main__":
    unittest.main()
