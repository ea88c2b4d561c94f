"""Shares that change while a run trains, and a run that repeats the changes."""

import pathlib
import tempfile
import unittest

from processes import WORKER_FLAGS, Cohort, kill

# Long enough that the run still trains after the changes; then it is drained.
FLAGS = ["--epochs=1000", "--schedule=constant", "--learning_rate=0.02"]
WORKERS = [*WORKER_FLAGS, "--batch_size_max=56"]


class Shares(unittest.TestCase):
    def changes(self, cohort):
        return [(row["version"], row["changes"])
                for row in cohort.rows("policy.csv")]

    def test_a_recorded_run_is_repeated_with_the_same_bits(self):
        """Although a worker and the server were killed in it."""
        with tempfile.TemporaryDirectory() as folder:
            recorded = pathlib.Path(folder) / "policy.csv"
            steps, changes, digest = self.record(recorded)
            self.assertEqual([change for _, change in changes[1:]],
                             ["shares=1,3", "learning_rate=0.01 shares=4,3"])
            for name, flags, same in [
                    ("repeated", [f"--policy_from={recorded}"], True),
                    ("without the changes", [], False)]:
                with (self.subTest(name),
                      Cohort(server_flags=[*FLAGS, f"--max_steps={steps}", *flags],
                             worker_flags=WORKERS) as cohort):
                    cohort.start()
                    cohort.complete()
                    self.assertEqual(cohort.model_digest() == digest, same)
                    if same:
                        self.assertEqual(self.changes(cohort)[1:], changes[1:])

    def record(self, path):
        """The steps of a run, its changes and its model; leaves its policy.csv."""
        with Cohort(server_flags=[*FLAGS, "--checkpoint_every=5"],
                    worker_flags=WORKERS, keeps=True) as cohort:
            cohort.start()
            cohort.await_version(5)
            cohort.ctl("policy", "set", "--shares=1,3")
            cohort.await_version(cohort.status()["version"] + 3)
            kill(cohort.workers[1])
            cohort.start_worker(1)
            cohort.await_version(cohort.status()["version"] + 3)
            cohort.resume_server()
            # As the epochs go by, some end within a step.
            cohort.await_version(cohort.status()["version"] + 30)
            cohort.ctl("policy", "set", "--shares=4,3", "--learning_rate=0.01")
            cohort.await_version(cohort.status()["version"] + 5)
            cohort.ctl("run", "drain")
            cohort.complete()
            path.write_bytes((cohort.results / "policy.csv").read_bytes())
            return (cohort.newest_checkpoint(), self.changes(cohort),
                    cohort.model_digest())

    def test_what_the_workers_cannot_take_is_refused(self):
        with Cohort(server_flags=FLAGS, worker_flags=WORKERS) as cohort:
            cohort.start()
            cohort.await_version(1)
            for shares, names in [
                    ("1,30", ["rank 1", "62", "56"]),
                    ("1,2,3", ["1,2,3", "2 weights"]),
                    ("1,2 --aggregation=async", ["--aggregation=async"])]:
                said = cohort.ctl("policy", "set", *f"--shares={shares}".split(),
                                  code=3).stderr
                for name in names:
                    self.assertIn(name, said)
            self.assertEqual(len(cohort.json("policy", "history")["changes"]), 1)

    def test_auto_needs_every_workers_most(self):
        with Cohort(server_flags=["--shares=auto"]) as cohort:
            cohort.start()
            cohort.await_worker(0, code=3)
            self.assertIn("--batch_size_max", cohort.log("worker0"))


if __name__ == "__main__":
    unittest.main()
