"""Policies of runs whose model several server processes share."""

import unittest

import history_check
from shards import Shards

# Longer than a test takes; the rest is drained.
LONG = ("--epochs=1000", "--schedule=constant")


class ShardPolicies(unittest.TestCase):
    def start_worker(self, cohort, rank):
        cohort.start_worker(rank, f"--exchange_log={cohort.dir}/{rank}.jsonl")

    def drain_and_check(self, cohort, **bounds):
        cohort.drain()
        events = history_check.load(cohort.dir.glob("*.jsonl"))
        self.assertEqual(history_check.check(events, **bounds), [],
                         cohort.log())
        return history_check.summary(events)

    def check(self, *flags, **bounds):
        """What clients see of three workers and three shards."""
        with Shards(3, *LONG, *flags, workers=3) as cohort:
            cohort.start_server()
            for rank in range(cohort.size):
                self.start_worker(cohort, rank)
            cohort.await_version(40)
            said = self.drain_and_check(cohort, **bounds)
            self.assertGreater(said["applied"], 40)

    def test_first_k_of_n(self):
        self.check("--min_pushes=2", pushes_min=2)

    def test_bounded(self):
        self.check("--aggregation=bounded", "--max_lead=2", "--staleness=drop",
                   "--max_staleness=1", staleness_max=1)

    def test_clipped_pushes_that_arrive_alone(self):
        self.check("--aggregation=async", "--staleness=compensate",
                   "--clip_norm=0.01")

    def test_the_number_of_workers_changes_live(self):
        with Shards(3, *LONG) as cohort:
            cohort.start_server()
            for rank in range(2):
                self.start_worker(cohort, rank)
            cohort.await_version(5)
            for size in (3, 1):
                cohort.ctl("policy", "set", f"--workers={size}")
                if size == 3:
                    self.start_worker(cohort, 2)
                cohort.wait_until(lambda size=size: self.at_work(cohort, size),
                                  f"{size} workers at work")
                cohort.await_version(cohort.status()["version"] + 5)
            self.drain_and_check(cohort)

    def at_work(self, cohort, size):
        workers = cohort.status()["workers"]
        return len(workers) == size and all(
            worker["state"] == "live" and worker["sequence"] > 0
            for worker in workers)

    def outcome(self, shards, *flags):
        """The digest of the model, and all evaluations."""
        with Shards(shards, *flags) as cohort:
            cohort.start()
            digest = cohort.complete()
            evaluations = [
                (row["version"], row["bn_statistics"], row["test_loss"],
                 row["test_accuracy"])
                for row in cohort.rows() if row["test_loss"]]
            self.assertTrue(evaluations)
            return digest, evaluations

    def test_masks_evaluations_and_averages_are_those_of_one_server(self):
        flags = ("--freeze=conv2.weight[0:4];fc.*", "--ema_decay=0.9",
                 "--bn_statistics=sync,after", "--optimizer=adamw",
                 "--clip_norm=0.01")
        one = self.outcome(1, *flags)
        self.assertIn("average", {row[1] for row in one[1]})
        self.assertEqual(self.outcome(3, *flags), one)

    def test_pushes_of_one_worker_are_applied_as_with_one_server(self):
        for flags in (["--aggregation=bounded"],
                      ["--aggregation=async", "--staleness=compensate"]):
            digests = set()
            for shards in (1, 3):
                with Shards(shards, *flags, workers=1) as cohort:
                    cohort.start()
                    digests.add(cohort.complete())
            self.assertEqual(len(digests), 1, flags)


if __name__ == "__main__":
    unittest.main(verbosity=2)
