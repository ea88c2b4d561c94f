"""Processes that are killed or stopped: what the others do, and what is said.
The bits of such runs are in same_bits_test.py."""

import os
import pathlib
import signal
import unittest

import processes
from ports import named_ports
from processes import Cohort, kill, run

# Much longer than the time before a fault, so that the run has not ended.
EPOCHS = "--epochs=4"


class KilledProcesses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cohort(server_flags=[EPOCHS]) as cohort:
            cohort.start()
            cls.digest = cohort.complete()

    def checkpointing(self, *flags, workers=2):
        return Cohort(workers=workers, keeps=True, server_flags=[
            EPOCHS, "--checkpoint_every=4", *flags])

    def test_a_checkpoint_that_fails_is_told_until_one_is_written(self):
        def doctor():
            return run("cohortctl", "doctor", f"--server={cohort.address}")

        with self.checkpointing("--epochs=100000") as cohort:
            cohort.start()
            cohort.await_checkpoint(4)
            self.assertNotIn("checkpoints", doctor().stdout)
            away = cohort.dir / "away"
            cohort.checkpoints.rename(away)
            cohort.wait_until(lambda: cohort.status()["checkpoint_problem"],
                              "a checkpoint that fails")
            told = doctor()
            self.assertEqual(told.returncode, 1, told.stdout)
            self.assertRegex(told.stdout, r"checkpoint of step \d+ failed")
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
                cohort.await_worker(rank, 5)
                self.assertIn("run is gone", cohort.log(f"worker{rank}"))
                cohort.start_worker(rank)
            self.assertEqual(cohort.complete(), self.digest)

    def test_the_others_go_on_without_a_killed_worker(self):
        for flags in ([], ["--aggregation=async"]):
            with self.subTest(flags), self.checkpointing(
                    "--on_worker_loss=continue", *flags, workers=3) as cohort:
                cohort.start()
                cohort.await_checkpoint(8)
                kill(cohort.workers[1])
                cohort.await_checkpoint(cohort.newest_checkpoint() + 5)
                cohort.complete()
                self.assertIn("rank 1 is lost", cohort.log())

    def test_gives_up_on_a_worker_that_nobody_replaces(self):
        with self.checkpointing("--replacement_deadline=1s") as cohort:
            cohort.worker_flags.append("--stopped_exit_code=143")
            cohort.start()
            cohort.await_checkpoint(4)
            kill(cohort.workers[1])
            cohort.complete(6)
            self.assertIn("no replacement for rank 1", cohort.log())
            # A server that is restarted with --resume needs this rank.
            cohort.await_worker(0, 143)
            self.assertTrue((cohort.results / "model.safetensors").exists())

    def test_supervised_processes_come_back_however_often_they_die(self):
        def child(supervisor):
            path = pathlib.Path(f"/proc/{supervisor.pid}/task/"
                                f"{supervisor.pid}/children")
            return cohort.until(lambda: path.read_text().split(), "a child")[0]

        with self.checkpointing("--resume", "--epochs=8") as cohort:
            # Restarts after a step do not count.
            cohort.wrapper = [processes.BIN / "cohortctl", "supervise",
                              "--max_restarts=1", "--"]
            cohort.address = f"127.0.0.1:{named_ports(1)[0]}"
            cohort.start()
            for times in range(1, 5):
                cohort.wait_until(
                    lambda: cohort.newest_checkpoint() >= 4 * times, "steps")
                for process in (cohort.workers[1], cohort.server)[:1 + times // 3]:
                    os.kill(int(child(process)), signal.SIGKILL)
            cohort.complete()
            cohort.await_workers()
            self.assertEqual(cohort.log("worker1").count("is started again"), 4)
            self.assertEqual(cohort.log().count("is started again"), 2)
            digest = cohort.model_digest()
        with self.checkpointing("--epochs=8") as cohort:
            cohort.start()
            self.assertEqual(cohort.complete(), digest)

    # Flags and exit code of a process that is stopped after some steps.
    STOPS = (([], 0), (["--stopped_exit_code=143"], 143))

    def test_a_stopped_worker_leaves_and_its_successor_goes_on(self):
        with self.checkpointing() as cohort:
            cohort.start_server()
            cohort.start_worker(1)
            for flags, code in self.STOPS:
                cohort.start_worker(0, *flags)
                cohort.await_checkpoint(cohort.newest_checkpoint() + 8)
                cohort.workers[0].send_signal(signal.SIGTERM)
                cohort.await_worker(0, code)
            cohort.start_worker(0)
            self.assertEqual(cohort.complete(), self.digest)

    def test_a_stopped_server_has_saved(self):
        with self.checkpointing("--resume") as cohort:
            cohort.address = f"127.0.0.1:{named_ports(1)[0]}"
            for rank in range(2):
                cohort.start_worker(rank)
            for flags, code in self.STOPS:
                cohort.start_server(*flags)
                cohort.await_checkpoint(cohort.newest_checkpoint() + 8)
                cohort.server.send_signal(signal.SIGTERM)
                cohort.complete(code)
            cohort.start_server()
            self.assertEqual(cohort.complete(), self.digest)


if __name__ == "__main__":
    unittest.main(verbosity=2)
