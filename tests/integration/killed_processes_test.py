"""Real processes, really killed."""

import random
import signal
import unittest

import processes
from processes import KILLS, Cohort, kill

# Much longer than the time before a fault, so that the run is still going on.
EPOCHS = "--epochs=4"


def undisturbed_digest(*flags, workers=2):
    with Cohort(workers=workers, server_flags=[EPOCHS, *flags]) as cohort:
        cohort.start()
        assert cohort.finish() == 0, cohort.log()
        return cohort.model_digest()


class KilledProcesses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {cls.seed}", flush=True)
        cls.random = random.Random(cls.seed)
        cls.digest = undisturbed_digest()

    def checkpointing(self, *flags, workers=2):
        cohort = Cohort(workers=workers, server_flags=[
            EPOCHS, "--checkpoint_every=4", *flags])
        cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
        return cohort

    def versions(self):
        """The version after which to kill, for each run."""
        return [self.random.randrange(8, 100) for _ in range(KILLS)]

    def test_two_undisturbed_runs_are_equal_to_the_bit(self):
        self.assertEqual(undisturbed_digest(), self.digest)

    def test_a_replacement_replays_to_the_same_bits(self):
        for at in self.versions():
            with self.subTest(version=at), self.checkpointing() as cohort:
                cohort.start()
                cohort.wait_until(lambda: cohort.newest_checkpoint() >= at,
                                  f"version {at}")
                kill(cohort.workers[1])
                cohort.start_worker(1)
                self.assertEqual(cohort.finish(), 0, cohort.log())
                self.assertEqual(cohort.model_digest(), self.digest)
                self.assertIn("rank 1 is lost", cohort.log())
                self.assertIn("rank 1: a replacement joined", cohort.log())

    def test_a_killed_server_resumes_to_the_same_bits(self):
        for at in self.versions():
            with self.subTest(version=at), self.checkpointing() as cohort:
                cohort.start()
                cohort.wait_until(lambda: cohort.newest_checkpoint() >= at,
                                  f"version {at}")
                kill(cohort.server)
                cohort.start_server("--resume")
                self.assertEqual(cohort.finish(), 0, cohort.log())
                self.assertEqual(cohort.model_digest(), self.digest)
                for rank, worker in cohort.workers.items():
                    self.assertEqual(worker.wait(30), 0, cohort.log(f"worker{rank}"))

    def test_the_others_go_on_without_a_killed_worker(self):
        with self.checkpointing("--on_worker_loss=continue",
                                workers=3) as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "version 8")
            kill(cohort.workers[1])
            before = cohort.newest_checkpoint()
            cohort.wait_until(lambda: cohort.newest_checkpoint() > before + 4,
                              "further steps")
            self.assertIn("rank 1 is lost", cohort.log())
            self.assertIn("the others continue without it", cohort.log())
            self.assertEqual(cohort.finish(), 0, cohort.log())

    def test_gives_up_on_a_worker_that_nobody_replaces(self):
        with self.checkpointing("--replacement_deadline=1s") as cohort:
            cohort.worker_flags.append("--stopped_exit_code=143")
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 4,
                              "version 4")
            kill(cohort.workers[1])
            self.assertEqual(cohort.finish(), 6, cohort.log())
            self.assertIn("no replacement for rank 1", cohort.log())
            # A server that is restarted with --resume needs this rank.
            self.assertEqual(cohort.workers[0].wait(30), 143,
                             cohort.log("worker0"))
            self.assertTrue((cohort.results / "model.safetensors").exists())

    def test_a_stopped_worker_leaves_and_its_successor_goes_on(self):
        with self.checkpointing() as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "version 8")
            cohort.workers[0].send_signal(signal.SIGTERM)
            self.assertEqual(cohort.workers[0].wait(20), 0,
                             cohort.log("worker0"))
            cohort.start_worker(0)
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), self.digest)

    def test_a_stopped_server_saves_and_exits_with_0(self):
        with self.checkpointing() as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "version 8")
            cohort.server.send_signal(signal.SIGTERM)
            self.assertEqual(cohort.finish(30), 0, cohort.log())
            cohort.start_server("--resume")
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), self.digest)

    def test_async_survives_a_killed_worker(self):
        with self.checkpointing("--aggregation=async",
                                "--on_worker_loss=continue") as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "version 8")
            kill(cohort.workers[1])
            self.assertEqual(cohort.finish(), 0, cohort.log())


if __name__ == "__main__":
    assert processes.BIN.is_dir(), processes.BIN
    unittest.main(verbosity=2)
