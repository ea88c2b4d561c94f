"""`cohortctl study` on real, tiny runs: killed half-way, resumed, read back."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from processes import BIN, kill, run, until

# Two policies and two seeds: four runs of a few seconds.
MATRIX = ["--aggregation=sync,async", "--normalization=local",
          "--bn_statistics=sync,async,after", "--batch_size=8", "--workers=2",
          "--seed=1,2", "--parallel=1"]
SERVER = ["--epochs=2", "--learning_rate=0.1", "--reference_images=16",
          "--precise_batches=4"]
WORKER = ["--", "--model=smooth", "--dataset=synthetic", "--limit=160",
          "--test_limit=64"]


def processes_of(folder):
    """Processes that have the folder's name in their command line."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command and int(path.parts[2]) != os.getpid():
            found.append(command)
    return found


class StudyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-study-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "study"

    def command(self, *flags):
        return ["study", f"--out={self.out}", *MATRIX, *SERVER, *flags, *WORKER]

    def start(self):
        """Starts a study and waits until its first run is done."""
        study = subprocess.Popen([BIN / "cohortctl", *self.command()],
                                 stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(study.communicate)
        self.addCleanup(study.kill)
        for line in study.stderr:
            if line.startswith("1/4 "):
                return study
        raise AssertionError("the study ended before its first run was done")

    def await_no_processes(self):
        until(lambda: not processes_of(self.out), "the end of all processes")

    def done(self):
        return sorted(path.parent.name
                      for path in self.out.glob("runs/*/run.json"))

    def rows(self):
        with open(self.out / "study.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_killed_and_resumed(self):
        study = self.start()
        kill(study)
        self.await_no_processes()
        first = self.done()
        self.assertGreaterEqual(len(first), 1)
        self.assertLess(len(first), 4)
        written = {name: (self.out / "runs" / name / "run.json").stat().st_mtime
                   for name in first}

        resumed = run("cohortctl", *self.command("--json"))
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn(f"{len(first)} are done already", resumed.stderr)
        self.assertIn("sync statistics with async", resumed.stderr)
        result = json.loads(resumed.stdout)
        self.assertEqual((result["runs"], result["done"], result["failed"]),
                         (4, 4, []))
        self.assertEqual(len(self.done()), 4)
        # Finished runs are not repeated.
        for name, time_written in written.items():
            path = self.out / "runs" / name / "run.json"
            self.assertEqual(path.stat().st_mtime, time_written)
        self.check_csv()

    def check_csv(self):
        rows = self.rows()
        kinds = {"sync": {"sync", "async", "after", "batch"},
                 "async": {"async", "after", "batch"}}
        for aggregation, wanted in kinds.items():
            for seed in ("1", "2"):
                found = [row for row in rows
                         if row["aggregation"] == aggregation
                         and row["seed"] == seed]
                self.assertEqual({row["bn_statistics"] for row in found},
                                 wanted)
        self.assertEqual(len(rows), 2 * 4 + 2 * 3)
        for row in rows:
            self.assertEqual(row["measure"], "accuracy")
            self.assertTrue(0 <= float(row["percent"]) <= 100, row)
            self.assertGreater(float(row["seconds"]), 0)
        # The numbers come from the runs' own files.
        name = "sync-local-shuffled-w2-b8-s1"
        with open(self.out / "runs" / name / "history.csv", newline="",
                  encoding="utf-8") as file:
            last = [row for row in csv.DictReader(file)
                    if row["bn_statistics"] == "after"][-1]
        row, = [row for row in rows
                if row["aggregation"] == "sync" and row["seed"] == "1"
                and row["bn_statistics"] == "after"]
        self.assertAlmostEqual(float(row["percent"]),
                               100 * float(last["test_accuracy"]), places=3)
        self.assertEqual(last["samples"], str(2 * 160))

    def test_interrupted(self):
        study = self.start()
        study.send_signal(signal.SIGINT)
        out, err = study.communicate(timeout=60)
        self.assertEqual(study.returncode, 1, err)
        self.assertIn("stopped: ", err)
        self.assertIn("\ngo on with: cohortctl study --out=", err)
        # The numbers so far are written.
        self.assertIn(f"{self.out}/study.csv", out)
        self.await_no_processes()
        self.assertGreaterEqual(len(self.rows()), 3)
        # A run that was ended early does not count.
        self.assertLess(len(self.done()), 4)

        other = run("cohortctl", *self.command("--epochs=3"))
        self.assertEqual(other.returncode, 2, other.stderr)
        flags = [flag.replace("--epochs=2", "--epochs=3")
                 for flag in self.command()]
        changed = run("cohortctl", *flags)
        self.assertEqual(changed.returncode, 3, changed.stderr)
        self.assertIn("other server flags: got '--epochs=3 ", changed.stderr)

    def test_flags_that_are_refused_end_it_at_the_first_run(self):
        for flags, code, text in (
                (["--nosuch=4"], 2, "cohort-server: unknown flag --nosuch"),
                (["--", "--dataset=nosuch"], 3, "--dataset: got nosuch")):
            result = run("cohortctl", "study", f"--out={self.out}",
                         "--aggregation=sync", "--normalization=local",
                         "--batch_size=1,2", "--workers=1", "--seed=1", *flags)
            self.assertEqual(result.returncode, 3, result.stderr)
            name = "sync-local-shuffled-w1-b1-s1"
            self.assertRegex(result.stderr, f"{name} failed: .* code {code}: ")
            self.assertNotIn("w1-b2-s1", result.stderr)
            self.assertIn(text, result.stderr.splitlines()[-1])
            # The failed study does not bind the folder to its flags either, as
            # the second round shows.
            self.assertEqual(self.done(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
