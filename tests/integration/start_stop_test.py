#!/usr/bin/env python3
"""How processes start and stop under a supervisor:
variables instead of flags, any order, signals, exit codes."""

import pathlib
import re
import signal
import subprocess
import unittest

from ports import named_ports
from processes import WORKER_FLAGS, Cohort, run

# Long enough that nothing ends before it is stopped.
LONG = "--epochs=10000"
DEADLINE_S = 600


def stop(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(DEADLINE_S)


def handles(process, number):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)", status, re.M)[1], 16)
    return bool(caught >> (number - 1) & 1)


class Variables(unittest.TestCase):
    def test_version_and_commit_are_the_same_everywhere(self):
        texts = set()
        for program in ("cohort-server", "cohort-worker", "cohortctl"):
            result = run(program, "--version",
                         environment={"COHORT_NONSENSE": "1"})
            self.assertEqual(result.returncode, 0, result.stderr)
            name, _, rest = result.stdout.partition(" ")
            self.assertEqual(name, program)
            texts.add(rest)
        self.assertRegex(texts.pop(), r"^\d+\.\d+\.\d+ \(commit \w+(-dirty)?\)$")
        self.assertFalse(texts)


class Start(unittest.TestCase):
    def test_workers_that_start_first_wait_for_the_server(self):
        with Cohort(workers=2, server_flags=["--epochs=1"]) as cohort:
            cohort.address = f"127.0.0.1:{named_ports(1)[0]}"
            for rank in range(2):
                cohort.start_worker(rank)
            cohort.await_log("worker1", "waiting to join")
            cohort.start_server()
            cohort.complete()
            cohort.await_workers()

    def test_all_addresses_of_a_name_are_tried(self):
        with Cohort(workers=1, server_flags=["--epochs=1"]) as cohort:
            hosts = cohort.dir / "hosts"
            # No process listens at the first address.
            hosts.write_text("127.0.0.2 two.test\n127.0.0.1 two.test\n")
            wrapper = ["unshare", "--mount", "sh", "-c",
                       f"mount --bind {hosts} /etc/hosts && exec \"$0\" \"$@\""]
            if subprocess.run([*wrapper, "true"], capture_output=True,
                              check=False).returncode != 0:
                self.skipTest("only root may give a process separate names")
            cohort.start_server()
            cohort.address = cohort.address.replace("127.0.0.1", "two.test")
            cohort.start_worker(0, wrapper=wrapper)
            cohort.complete()

    def test_a_worker_too_many_is_told_how_many_there_are(self):
        with Cohort(workers=2, server_flags=[LONG]) as cohort:
            cohort.start()
            cohort.await_version(3)
            result = run("cohort-worker", f"--server={cohort.address}",
                         "--rank=2", *WORKER_FLAGS)
            # Success, because a failure would also fail the other workers'
            # Job.
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("2 workers, ranks 0 to 1", result.stderr)


class Stop(unittest.TestCase):
    def test_a_worker_that_still_waits_for_its_server_stops(self):
        # The second signal ends at once. If both are pending, either may come
        # first.
        for signals, codes in (([signal.SIGTERM], [0]), (
                [signal.SIGTERM, signal.SIGINT], [130, 143])):
            with Cohort(workers=1) as cohort:
                cohort.address = f"127.0.0.1:{named_ports(1)[0]}"
                worker = cohort.start_worker(0)
                cohort.await_log("worker0", "waiting to join")
                for number in signals:
                    worker.send_signal(number)
                self.assertIn(worker.wait(DEADLINE_S), codes,
                              cohort.log("worker0"))

    def test_a_signal_during_the_start_ends_at_once(self):
        with Cohort(workers=1) as cohort:
            cohort.address = "127.0.0.1:9"
            # Creating a network of this size takes longer than installing the
            # signal handlers, which is the first thing that a worker does.
            worker = cohort.start_worker(0, "--model=resnet50")
            cohort.until(lambda: handles(worker, signal.SIGTERM),
                         "the worker to handle signals")
            self.assertEqual(stop(worker), 143)


class ExitWhenDone(unittest.TestCase):
    def test_a_server_that_is_to_stay_is_there_to_be_looked_at(self):
        with Cohort(server_flags=["--epochs=1", "--noexit_when_done"],
                    keeps=True) as cohort:
            cohort.start()
            cohort.await_log("server", "stays up until it is stopped")
            cohort.await_workers()
            digest = cohort.model_digest()
            self.assertGreater(cohort.newest_checkpoint(), 0)
            self.assertTrue(cohort.status()["ended"])
            # A worker that comes late gets a clear answer.
            cohort.start_worker(0)
            cohort.await_worker(0)
            self.assertEqual(stop(cohort.server), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), digest)
            self.assertRegex(cohort.log().splitlines()[-1], "test accuracy")

    def test_a_run_whose_gradients_are_not_finite_fails(self):
        # A decay that makes the weights overflow within a few steps.
        with Cohort(server_flags=["--weight_decay=1e6",
                                  "--learning_rate=1000"]) as cohort:
            cohort.start()
            cohort.complete(8)
            self.assertRegex(cohort.log(), r"not finite: rank [01]: \w+ of \w+")
            cohort.await_workers(1)
            self.assertTrue((cohort.results / "model.safetensors").exists())

    def test_a_finished_run_that_is_resumed_only_scores_again(self):
        with Cohort(server_flags=["--epochs=1"], keeps=True) as cohort:
            cohort.start()
            digest = cohort.complete()
            cohort.start("--resume")
            self.assertEqual(cohort.complete(), digest)


if __name__ == "__main__":
    unittest.main()
