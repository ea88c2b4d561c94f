"""Local steps of cohort-worker: their numbers, and their bits after kills.

The references are runs of the same programs without local steps, which other
tests compare with a process of one's own."""

import unittest

from processes import WORKER_FLAGS, Cohort, kill, run, series
from safetensors_file import numbers_of

# Equal batches in every step, so that shares are equal: 8 steps.
SAMPLES = 512
DATA = [*WORKER_FLAGS, f"--limit={SAMPLES}"]
PLAIN = ["--optimizer=sgd", "--weight_decay=0"]
REFERENCE = [*PLAIN, "--normalization=local", "--bn_mixture_variance",
             "--epochs=1"]


def local_flags(rate, momentum=0):
    return [f"--local_learning_rate={rate}", f"--local_momentum={momentum}",
            "--local_weight_decay=0"]


class LocalSteps(unittest.TestCase):
    def run_cohort(self, server_flags, worker_flags=DATA, workers=2):
        """The tensors of the model, by name."""
        with Cohort(workers=workers, server_flags=server_flags,
                    worker_flags=worker_flags) as cohort:
            cohort.start()
            cohort.complete()
            return numbers_of(cohort.results / "model.safetensors")

    def assert_close(self, seen, wanted, tolerance=2e-5):
        self.assertEqual(seen.keys(), wanted.keys())
        for name, values in wanted.items():
            self.assertEqual(len(seen[name]), len(values), name)
            scale = max(1, *map(abs, values))
            for a, b in zip(seen[name], values):
                self.assertLess(abs(a - b), tolerance * scale, name)

    def test_one_worker_with_outer_rate_one_is_plain_training(self):
        # 16 steps of 32 samples, as four times four.
        seen = self.run_cohort(
            [*PLAIN, "--local_steps=4", "--learning_rate=1",
             "--schedule=constant", "--epochs=1"],
            [*DATA, *local_flags(0.05)], workers=1)
        wanted = self.run_cohort(
            [*REFERENCE, "--learning_rate=0.05", "--schedule=constant"],
            workers=1)
        self.assert_close(seen, wanted)

    def test_single_local_steps_are_synchronous_steps(self):
        """With the schedule of the local rate."""
        seen = self.run_cohort(
            [*PLAIN, "--local_steps=1", "--learning_rate=1", "--epochs=1",
             "--schedule=cosine"], [*DATA, *local_flags(0.05)])
        wanted = self.run_cohort(
            [*REFERENCE, "--learning_rate=0.05", "--schedule=cosine"])
        self.assert_close(seen, wanted)

    def test_statistics_are_those_of_all_local_steps(self):
        """The weights stay; the last step has three cuts of five."""
        seen = self.run_cohort(
            [*PLAIN, "--local_steps=5", "--epochs=1"],
            [*DATA, *local_flags(0)])
        wanted = self.run_cohort(
            [*REFERENCE, "--learning_rate=1e-30", "--schedule=constant"])
        self.assert_close(seen, wanted)
        counts = {values[0] for name, values in seen.items()
                  if name.endswith("num_batches_tracked")}
        self.assertEqual(counts, {8})

    def test_a_run_counts_both_kinds_of_steps(self):
        with Cohort(server_flags=["--local_steps=3", "--epochs=1",
                                  "--exit_when_done=false"],
                    worker_flags=DATA) as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.status()["ended"], "the end")
            status = cohort.status()
            self.assertEqual((status["version"], int(status["local_steps"])),
                             (3, 8))
            self.assertEqual(series(cohort.page())["cohort_local_steps"], 8)
            self.assertEqual(status["learning_rate"], 0.7)
            cohort.wait_until(
                lambda: ("3", "8") in {(row["version"], row["local_steps"])
                                       for row in cohort.rows_so_far()},
                "the row of the last step")

    def test_kills_do_not_change_a_bit(self):
        flags = ["--local_steps=4", "--epochs=60", "--schedule=constant"]
        worker = [*DATA, *local_flags(0.01, momentum=0.9)]
        digests = {}
        for victim in ("none", "worker", "server"):
            with Cohort(server_flags=[*flags, "--checkpoint_every=3"],
                        worker_flags=worker, keeps=True) as cohort:
                cohort.start()
                if victim == "worker":
                    cohort.await_version(5)
                    kill(cohort.workers[1])
                    cohort.start_worker(1)
                if victim == "server":
                    cohort.await_checkpoint(6)
                    cohort.resume_server()
                digests[victim] = cohort.complete()
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_workers_with_other_local_optimizers_are_refused(self):
        with Cohort(server_flags=["--local_steps=2"]) as cohort:
            cohort.start_server()
            cohort.start_worker(0)
            cohort.start_worker(1, "--local_learning_rate=0.2")
            cohort.await_worker(1, code=3)
            self.assertIn("optimizer of local steps", cohort.log("worker1"))

    def test_settings_that_take_pushes_for_gradients_are_refused(self):
        for flag in ("--aggregation=async", "--clip_norm=1",
                     "--weight_decay=0.1", "--optimizer=lars",
                     "--normalization=global", "--bn_statistics=chief"):
            with self.subTest(flag):
                done = run("cohort-server", "--listen=127.0.0.1:0",
                           "--ops_listen=", "--local_steps=2", flag)
                self.assertEqual(done.returncode, 3)
                self.assertIn("--local_steps=2", done.stderr)


if __name__ == "__main__":
    unittest.main()
