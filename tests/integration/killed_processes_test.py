"""Real processes, really killed."""

import collections
import math
import random
import signal
import time
import unittest

import history_check
import processes
from processes import KILLS, Cohort, kill, run

# Much longer than the time before a fault, so that the run is still going on.
EPOCHS = "--epochs=4"
# At most this long after the version at which a kill is due, so that it comes
# at any moment of a step.
KILL_DELAY_MAX_S = 0.1


def undisturbed_digest(*flags, workers=2):
    with Cohort(workers=workers, server_flags=[EPOCHS, *flags]) as cohort:
        cohort.start()
        assert cohort.finish() == 0, cohort.log()
        return cohort.model_digest()


class LoggedCohort(Cohort):
    """Its workers write down what they exchange with the server."""

    def start_worker(self, rank, *flags, **others):
        return super().start_worker(
            rank, f"--exchange_log={self.dir}/{rank}.jsonl", *flags, **others)

    def first_step_us(self, is_new):
        """When the first push was applied whose answer `is_new`."""
        return min(event["end_us"]
                   for event in history_check.load(self.dir.glob("*.jsonl"))
                   if event.get("verdict") in history_check.APPLIED and
                   is_new(event))

    def kill_and_time(self, process, restart, is_new):
        """Kills, restarts at once, and returns what gives the seconds from the
        kill to the first step that needed the new process; call that after the
        run. The workers' logs have microseconds."""
        before = self._newest_incarnation()
        killed_us = time.time_ns() // 1000
        kill(process)
        restart()
        return lambda: (self.first_step_us(
            lambda event: is_new(event, before)) - killed_us) / 1e6

    def _newest_incarnation(self):
        return max(event["incarnation"] for event in
                   history_check.load(self.dir.glob("*.jsonl")))


class KilledProcesses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {cls.seed}", flush=True)
        cls.random = random.Random(cls.seed)
        cls.digest = undisturbed_digest()
        print(f"SHA-256 of the weights: {cls.digest}", flush=True)
        # By what was killed: seconds until a step with its replacement.
        cls.seconds = collections.defaultdict(list)

    @classmethod
    def tearDownClass(cls):
        for what, seconds in sorted(cls.seconds.items()):
            seconds.sort()
            p50, p99 = (seconds[math.ceil(share * len(seconds)) - 1]
                        for share in (0.5, 0.99))
            print(f"{len(seconds)} kills of a {what}, seconds to the first "
                  f"step with its replacement: p50 {p50:.2f}, p99 {p99:.2f}, "
                  f"max {seconds[-1]:.2f}", flush=True)

    def await_moment(self, cohort, version):
        """A random moment after that version."""
        cohort.wait_until(lambda: cohort.newest_checkpoint() >= version,
                          f"version {version}")
        time.sleep(self.random.uniform(0, KILL_DELAY_MAX_S))

    def checkpointing(self, *flags, workers=2):
        cohort = LoggedCohort(workers=workers, server_flags=[
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
                self.await_moment(cohort, at)
                seconds = cohort.kill_and_time(
                    cohort.workers[1], lambda: cohort.start_worker(1),
                    lambda event, before: event["rank"] == 1 and
                    event["incarnation"] > before)
                self.assertEqual(cohort.finish(), 0, cohort.log())
                self.assertEqual(cohort.model_digest(), self.digest)
                self.seconds["worker"].append(seconds())
                self.assertIn("rank 1 is lost", cohort.log())
                self.assertIn("rank 1: a replacement joined", cohort.log())

    def test_a_killed_server_resumes_to_the_same_bits(self):
        for at in self.versions():
            with self.subTest(version=at), self.checkpointing() as cohort:
                cohort.start()
                self.await_moment(cohort, at)
                seconds = cohort.kill_and_time(
                    cohort.server, lambda: cohort.start_server("--resume"),
                    lambda event, before: event["incarnation"] > before)
                self.assertEqual(cohort.finish(), 0, cohort.log())
                self.assertEqual(cohort.model_digest(), self.digest)
                self.seconds["server"].append(seconds())
                for rank, worker in cohort.workers.items():
                    self.assertEqual(worker.wait(30), 0, cohort.log(f"worker{rank}"))

    def test_a_checkpoint_that_fails_is_told_until_one_is_written(self):
        def doctor():
            return run("cohortctl", "doctor", f"--server={cohort.address}")

        with self.checkpointing("--epochs=100000") as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 4,
                              "a checkpoint")
            self.assertNotIn("checkpoints", doctor().stdout)
            away = cohort.dir / "away"
            cohort.checkpoints.rename(away)
            cohort.wait_until(lambda: cohort.status()["checkpoint_problem"],
                              "a checkpoint that fails")
            told = doctor()
            self.assertEqual(told.returncode, 1, told.stdout)
            self.assertRegex(told.stdout,
                             r"checkpoints\s+\w+\s+checkpoint of step \d+ failed")
            away.rename(cohort.checkpoints)
            cohort.wait_until(
                lambda: not cohort.status()["checkpoint_problem"],
                "one that is written")

    def test_a_server_without_a_checkpoint_is_another_run(self):
        """Workers of the run that is gone end; new ones join the new run."""
        with Cohort(workers=2, server_flags=["--epochs=100000"]) as cohort:
            cohort.start()
            cohort.await_log("server", "training starts")
            kill(cohort.server)
            cohort.server_flags = [EPOCHS]
            cohort.start_server()
            for rank in range(2):
                self.assertEqual(cohort.workers[rank].wait(120), 5)
                self.assertIn("this worker's run is gone",
                              cohort.log(f"worker{rank}"))
                cohort.start_worker(rank)
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), self.digest)

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
