"""Gradients and weights through shared memory, with real processes."""

import os
import pathlib
import signal
import subprocess
import unittest

import processes
from processes import KILLS, Cohort, kill

def cohort_of(local, *server_flags, epochs=2):
    cohort = Cohort(keeps=True, server_flags=[
        f"--epochs={epochs}", "--checkpoint_every=4", *server_flags])
    cohort.local = local
    return cohort


class Local(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with cohort_of("tcp") as cohort:
            cohort.start()
            cls.digest = cohort.complete()

    def test_status_tells_how_gradients_travel(self):
        # It ends with the test.
        with cohort_of(("shm", "tcp"), epochs=10_000) as cohort:
            cohort.start()
            cohort.wait_until(
                lambda: [worker["transport"] for worker in
                         cohort.status()["workers"]] == ["shm", "tcp"],
                "the ways of both workers")

    def test_a_stopped_worker_that_goes_on_changes_nothing(self):
        """It may read and write memory that is no longer its own."""
        with cohort_of("shm", "--lease=3s") as cohort:
            cohort.start()
            cohort.await_checkpoint(8)
            stopped = cohort.workers[1]
            stopped.send_signal(signal.SIGSTOP)
            cohort.await_log("server", "rank 1 is lost")
            cohort.start_worker(1)
            cohort.await_log("server", "rank 1: a replacement joined")
            stopped.send_signal(signal.SIGCONT)
            self.assertEqual(cohort.complete(), self.digest)

    def test_no_worker_leaves_descriptors_behind(self):
        with cohort_of("shm", "--on_worker_loss=wait",
                       epochs=100000) as cohort:
            cohort.start()
            open_files = pathlib.Path(f"/proc/{cohort.server.pid}/fd")

            def shared():
                count = 0
                for file in open_files.iterdir():
                    try:
                        count += "cohort-gradients" in os.readlink(file)
                    except FileNotFoundError:
                        # Closed since it was listed.
                        pass
                return count

            cohort.until(lambda: shared() == 2, "both workers to share memory")
            for _ in range(KILLS + 2):
                before = cohort.newest_checkpoint()
                kill(cohort.workers[1])
                cohort.until(lambda: shared() == 1, "the arena to go")
                cohort.start_worker(1)
                cohort.await_checkpoint(before + 5)
                self.assertEqual(shared(), 2)
            cohort.server.send_signal(signal.SIGTERM)
            cohort.complete()
            self.assertEqual(cohort.log().count("workers exchange"), 1)

    def test_a_worker_of_another_user_uses_tcp(self):
        wrapper = ("setpriv", "--reuid=65534", "--regid=65534",
                   "--clear-groups")
        if os.geteuid() != 0 or subprocess.run(
                [*wrapper, processes.BIN / "cohort-worker", "--version"],
                capture_output=True, check=False).returncode != 0:
            self.skipTest("cannot start a worker as another user")
        with cohort_of("auto") as cohort:
            cohort.start_server()
            cohort.start_worker(0)
            cohort.start_worker(1, wrapper=wrapper)
            self.assertEqual(cohort.complete(), self.digest)
            self.assertIn("go over TCP", cohort.log("worker1"))

    def test_says_why_memory_cannot_be_shared(self):
        with cohort_of("shm", "--local=tcp") as cohort:
            cohort.start()
            code = cohort.workers[0].wait(60)
            self.assertNotEqual(code, 0)
            self.assertIn("--local=shm: ", cohort.log("worker0"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
