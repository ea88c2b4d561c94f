"""Histories of runs with faults, checked against a model."""

import os
import random
import unittest

import history_check
from faults import CuttableProxy
from processes import Cohort, kill

# Much longer than the faults take; the rest is drained. Several partitions, so
# that a version can arrive in parts.
FLAGS = ("--epochs=1000", "--checkpoint_every=2", "--partition_kib=1")


class History(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The faults and their order; what happens at that moment is chance.
        given = os.environ.pop("COHORT_HISTORY_SEED", "")
        seed = int(given or random.SystemRandom().randrange(1 << 30))
        print(f"COHORT_HISTORY_SEED={seed}", flush=True)
        cls.random = random.Random(seed)

    def start_worker(self, cohort, rank):
        cohort.start_worker(rank,
                            f"--exchange_log={cohort.dir}/{rank}.jsonl")

    def await_steps(self, cohort):
        """A few versions more, so that faults fall into different moments."""
        wanted = cohort.newest_checkpoint() + self.random.randrange(3, 20)
        cohort.await_checkpoint(wanted)

    def disturb(self, cohort, proxy):
        """Each kind of fault, twice, in a random order."""
        def replace_worker():
            rank = self.random.randrange(cohort.size)
            kill(cohort.workers[rank])
            self.start_worker(cohort, rank)

        faults = 2 * [replace_worker, cohort.resume_server, proxy.cut]
        self.random.shuffle(faults)
        for fault in faults:
            self.await_steps(cohort)
            print(fault.__name__, cohort.newest_checkpoint(), flush=True)
            fault()
        self.await_steps(cohort)
        # A worker that starts after the end would wait for another server.
        cohort.wait_until(lambda: all(worker["state"] == "live" for worker in
                                      cohort.status()["workers"]),
                          "all workers to be back")

    def check(self, *flags, workers=2, **bounds):
        with Cohort(workers=workers,
                    server_flags=[*FLAGS, *flags], keeps=True) as cohort:
            cohort.start_server()
            with CuttableProxy(cohort.address) as proxy:
                cohort.address = proxy.address
                for rank in range(workers):
                    self.start_worker(cohort, rank)
                self.disturb(cohort, proxy)
                cohort.ctl("run", "drain")
                cohort.complete()
                cohort.await_workers()
            events = history_check.load(cohort.dir.glob("*.jsonl"))
            found = history_check.check(events, **bounds)
            said = history_check.summary(events)
            print(said, flush=True)
            self.assertEqual(found, [], said)
            # Otherwise the faults have not happened.
            self.assertGreaterEqual(said["starts"], 3)
            self.assertGreaterEqual(said["incarnations"], 2 * workers)
            self.assertGreater(said["applied"], 20)
            self.assertGreater(said["reads"], workers)

    def test_synchronous(self):
        self.check("--aggregation=sync")

    def test_synchronous_where_the_others_continue(self):
        self.check("--aggregation=sync", "--on_worker_loss=continue",
                   workers=3)

    def test_first_k_of_n(self):
        self.check("--aggregation=sync", "--min_pushes=2", workers=3,
                   pushes_min=2)

    def test_bounded(self):
        self.check("--aggregation=bounded", "--max_lead=2",
                   "--staleness=drop", "--max_staleness=1", workers=3,
                   staleness_max=1)

    def test_asynchronous(self):
        self.check("--aggregation=async", "--on_worker_loss=continue",
                   workers=3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
