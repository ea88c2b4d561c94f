"""Elastic cohorts of real workers: more and fewer of them while they train."""

import csv
import json
import signal
import unittest

import history_check
from processes import BIN, Cohort, kill, run

LIMITS = "--workers=1:5"


class Elastic(unittest.TestCase):
    def status(self, cohort):
        told = run("cohortctl", "status", "--json",
                   f"--server={cohort.address}")
        self.assertEqual(told.returncode, 0, told.stderr)
        return json.loads(told.stdout)

    def live(self, cohort):
        """Workers that have been given work, and are there."""
        return sum(worker["state"] == "live" and worker["sequence"] > 0
                   for worker in self.status(cohort)["workers"])

    def start_worker(self, cohort, name):
        """A worker that takes any free rank."""
        cohort.workers[name] = cohort.start_process(f"worker{name}", [
            BIN / "cohort-worker", f"--server={cohort.address}",
            *cohort.worker_flags,
            f"--exchange_log={cohort.dir}/{name}.jsonl"])

    def await_steps_of(self, cohort, workers):
        """Waits until all of `workers` train, and for a few steps then."""
        cohort.wait_until(lambda: self.live(cohort) == workers,
                          f"{workers} workers")
        version = self.status(cohort)["version"] + 5
        cohort.wait_until(lambda: self.status(cohort)["version"] >= version,
                          f"version {version}")

    def drain(self, cohort):
        drained = run("cohortctl", "run", "drain",
                      f"--server={cohort.address}")
        self.assertEqual(drained.returncode, 0, drained.stderr)
        self.assertEqual(cohort.finish(), 0, cohort.log())

    def check_history(self, cohort, **bounds):
        logs = sorted(cohort.dir.glob("*.jsonl"))
        violations = history_check.check(history_check.load(logs), **bounds)
        self.assertEqual(violations, [], cohort.log())

    def sizes(self, cohort):
        with open(cohort.results / "history.csv", newline="",
                  encoding="utf-8") as file:
            return {int(row["workers"]) for row in csv.DictReader(file)
                    if row["workers"]}

    def resize(self, *flags):
        """From one worker to five and down to two, by all ways to leave."""
        with Cohort(server_flags=[LIMITS, "--epochs=1000", *flags]) as cohort:
            cohort.start_server()
            self.start_worker(cohort, 0)
            self.await_steps_of(cohort, 1)
            for name in range(1, 5):
                self.start_worker(cohort, name)
            self.await_steps_of(cohort, 5)
            cohort.workers[1].send_signal(signal.SIGTERM)
            kill(cohort.workers[2])
            cohort.workers[3].send_signal(signal.SIGSTOP)
            self.await_steps_of(cohort, 2)
            kill(cohort.workers[3])
            self.drain(cohort)
            for name in (0, 4):
                self.assertEqual(cohort.workers[name].wait(60), 0,
                                 cohort.log(f"worker{name}"))
            self.check_history(cohort)
            return self.sizes(cohort)

    def test_a_synchronous_cohort(self):
        sizes = self.resize("--lease=5s")
        self.assertIn(1, sizes)
        self.assertIn(5, sizes)

    def test_an_asynchronous_cohort(self):
        self.resize("--lease=5s", "--aggregation=async")

    def test_limits_change_live_and_too_few_workers_wait(self):
        with Cohort(server_flags=["--workers=2:3",
                                  "--epochs=1000"]) as cohort:
            cohort.start_server()
            for name in range(2):
                self.start_worker(cohort, name)
            self.await_steps_of(cohort, 2)
            cohort.workers[0].send_signal(signal.SIGTERM)
            cohort.wait_until(
                lambda: "1 here, want at least 2" in
                self.status(cohort)["state"], "the run to wait")
            changed = run("cohortctl", "policy", "set", "--workers=1:3",
                          f"--server={cohort.address}")
            self.assertEqual(changed.returncode, 0, changed.stderr)
            self.await_steps_of(cohort, 1)
            self.start_worker(cohort, 2)
            self.await_steps_of(cohort, 2)
            self.drain(cohort)
            self.check_history(cohort)

    def test_a_restarted_server_goes_on_with_fewer(self):
        with Cohort(server_flags=[LIMITS, "--epochs=1000",
                                  "--checkpoint_every=5"]) as cohort:
            cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
            cohort.start_server()
            for name in range(3):
                self.start_worker(cohort, name)
            self.await_steps_of(cohort, 3)
            kill(cohort.workers[0])
            kill(cohort.server)
            cohort.start_server("--resume")
            self.await_steps_of(cohort, 2)
            self.drain(cohort)
            self.check_history(cohort)

    def test_conflicts_are_refused(self):
        for flags, wanted in (
                (["--workers=3:2"], "MIN:MAX with 1 <= MIN <= MAX"),
                (["--workers=0:2"], "MIN:MAX with 1 <= MIN <= MAX"),
                (["--workers=2:3", "--on_worker_loss=wait"],
                 "want continue with --workers=2:3")):
            refused = run("cohort-server", "--listen=127.0.0.1:0", *flags)
            self.assertEqual(refused.returncode, 3, refused.stderr)
            self.assertIn(wanted, refused.stderr)


if __name__ == "__main__":
    unittest.main()
