"""`cohortctl workers drain`: a real worker leaves after its step."""

import re
import unittest

from processes import Cohort

# Long enough for a drain and a replacement in the middle.
EPOCH_COUNT = 5
EPOCHS = f"--epochs={EPOCH_COUNT}"
# As under Kubernetes, where 0 would mean that a rank's work is done.
STOPPED = "--stopped_exit_code=143"


class WorkerDrain(unittest.TestCase):
    def drain(self, cohort, rank):
        """Returns the version at which the worker had left."""
        result = cohort.ctl(
            "workers", "drain", f"--rank={rank}",
            "--reason=its machine is needed")
        match = re.fullmatch(
            rf"worker {rank} has left at step (\d+)\n", result.stdout)
        self.assertIsNotNone(match, result.stdout)
        return int(match.group(1))

    def test_worker_leaves_after_its_step_and_nothing_is_computed_twice(self):
        with Cohort(server_flags=[EPOCHS]) as undisturbed:
            undisturbed.start()
            digest = undisturbed.complete()
        with Cohort(server_flags=[EPOCHS]) as cohort:
            cohort.worker_flags.append(STOPPED)
            cohort.start()
            cohort.await_version(5)
            at = self.drain(cohort, 1)
            self.assertGreaterEqual(at, 5)
            cohort.await_worker(1, 143)
            status = cohort.status()
            # The worker's last step counts, and the next step waits for a
            # replacement.
            self.assertEqual(status["version"], at)
            self.assertEqual(status["workers"][1]["state"], "vacant")
            self.assertIn("replacement of worker 1", status["state"])
            self.check_each_push_counts_once(status)
            self.assertIn("rank 1 leaves", cohort.log())

            cohort.start_worker(1)
            cohort.await_version(at + 3)
            self.check_each_push_counts_once(cohort.status())
            self.assertEqual(cohort.complete(), digest)
            # The end of the run does not count as leaving early.
            cohort.await_workers()

    def check_each_push_counts_once(self, status):
        counters = status["counters"]
        # Two workers of 32 images, each once a version.
        self.assertEqual(counters["pushes_applied"], 2 * status["version"])
        self.assertEqual(status["samples"], 64 * status["version"])
        for name in ("pushes_duplicate", "pushes_dropped", "steps_aborted",
                     "replay_mismatches"):
            self.assertEqual(counters[name], 0, name)

    def test_the_others_go_on_without_a_worker_that_was_drained(self):
        with Cohort(server_flags=[EPOCHS, "--aggregation=async",
                                  "--normalization=local",
                                  "--on_worker_loss=continue"]) as cohort:
            cohort.start()
            cohort.await_version(5)
            at = self.drain(cohort, 0)
            cohort.await_worker(0)
            cohort.await_version(at + 3)
            status = cohort.status()
            self.assertEqual(status["counters"]["pushes_duplicate"], 0)
            self.assertEqual(status["counters"]["pushes_dropped"], 0)
            cohort.complete()
            last = cohort.rows()[-1]
            # Every image once an epoch: the data set has 4096.
            self.assertEqual(int(last["samples"]), EPOCH_COUNT * 4096)
            self.assertEqual(int(last["version"]), EPOCH_COUNT * 4096 // 32)


if __name__ == "__main__":
    unittest.main()
