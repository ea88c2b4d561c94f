#!/usr/bin/env python3
"""How processes start and stop under a supervisor:
variables instead of flags, any order, signals, exit codes."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import unittest

from processes import BIN, WORKER_FLAGS, Cohort, run

# Long enough that nothing ends before it is told to.
LONG = "--epochs=10000"
DEADLINE_S = 60


def run_with(program, variables, *flags):
    """Runs a program in an environment of its own."""
    return subprocess.run(
        [BIN / program, *flags], stdin=subprocess.DEVNULL, text=True,
        capture_output=True, timeout=DEADLINE_S, check=False,
        env={"PATH": os.environ["PATH"], **variables})


def stop(process, number=signal.SIGTERM):
    process.send_signal(number)
    return process.wait(DEADLINE_S)


def handles(process, number):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)", status, re.M)[1], 16)
    return bool(caught >> (number - 1) & 1)


def training(cohort):
    """Waits until a few steps are committed."""
    def has_begun():
        status = run("cohortctl", "status", "--json",
                     f"--server={cohort.address}")
        return status.returncode == 0 and json.loads(status.stdout)[
            "version"] >= 3
    cohort.wait_until(has_begun, "training to begin")


class Variables(unittest.TestCase):
    def test_version_and_commit_are_the_same_everywhere(self):
        texts = set()
        for program in ("cohort-server", "cohort-worker", "cohortctl"):
            result = run_with(program, {"COHORT_NONSENSE": "1"}, "--version")
            self.assertEqual(result.returncode, 0, result.stderr)
            name, _, rest = result.stdout.partition(" ")
            self.assertEqual(name, program)
            texts.add(rest)
        self.assertRegex(texts.pop(), r"^\d+\.\d+\.\d+ \(commit \w+(-dirty)?\)$")
        self.assertFalse(texts)

    def test_a_variable_is_a_flag_and_a_flag_wins(self):
        bad = {"COHORT_WORKERS": "0"}
        result = run_with("cohort-server", bad, "--listen=127.0.0.1:0")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("workers: got 0", result.stderr)
        result = run_with("cohort-server", bad, "--workers=1",
                          "--listen=0.0.0.0:0")
        self.assertIn("--insecure", result.stderr)

    def test_an_unknown_variable_gets_a_suggestion(self):
        for program, given, meant in (
                ("cohort-server", "COHORT_WROKERS", "COHORT_WORKERS"),
                ("cohort-worker", "COHORT_SEVER", "COHORT_SERVER")):
            result = run_with(program, {given: "1"})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"unknown variable {given} in the environment; did "
                          f"you mean {meant}?", result.stderr)


class Start(unittest.TestCase):
    def test_workers_that_start_first_wait_for_the_server(self):
        with Cohort(workers=2, server_flags=["--epochs=1"]) as cohort:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                cohort.address = f"127.0.0.1:{taken.getsockname()[1]}"
            for rank in range(2):
                cohort.start_worker(rank)
            cohort.await_log("worker1", "waiting to join")
            cohort.start_server()
            self.assertEqual(cohort.finish(), 0, cohort.log())
            for worker in cohort.workers.values():
                self.assertEqual(worker.wait(DEADLINE_S), 0)

    def test_all_addresses_of_a_name_are_tried(self):
        with Cohort(workers=1, server_flags=["--epochs=1"]) as cohort:
            hosts = cohort.dir / "hosts"
            # No process listens at the first address.
            hosts.write_text("127.0.0.2 two.test\n127.0.0.1 two.test\n")
            wrapper = ["unshare", "--mount", "sh", "-c",
                       f"mount --bind {hosts} /etc/hosts && exec \"$0\" \"$@\""]
            if subprocess.run([*wrapper, "true"], capture_output=True,
                              check=False).returncode != 0:
                self.skipTest("only root may give a process names of its own")
            cohort.start_server()
            cohort.address = cohort.address.replace("127.0.0.1", "two.test")
            cohort.start_worker(0, wrapper=wrapper)
            self.assertEqual(cohort.finish(), 0, cohort.log("worker0"))

    def test_a_worker_too_many_is_told_how_many_there_are(self):
        with Cohort(workers=2, server_flags=[LONG]) as cohort:
            cohort.start()
            training(cohort)
            result = run("cohort-worker", f"--server={cohort.address}",
                         "--rank=2", *WORKER_FLAGS)
            # Success, because a failure would also fail the other workers'
            # Job.
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("rank 2 is not needed: the run has 2 workers, ranks "
                          "0 to 1", result.stderr)

    def test_a_folder_that_cannot_be_made_is_named(self):
        result = run("cohort-server", "--listen=127.0.0.1:0",
                     "--results_dir=/proc/results")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("--results_dir: cannot create /proc/results",
                      result.stderr.splitlines()[-1])


class Stop(unittest.TestCase):
    def test_a_stopped_server_has_saved(self):
        for flags, code in (((), 0), (("--stopped_exit_code=143",), 143)):
            with Cohort(workers=2, server_flags=[LONG, *flags]) as cohort:
                cohort.server_flags.append(
                    f"--checkpoint_dir={cohort.checkpoints}")
                cohort.start()
                training(cohort)
                self.assertEqual(stop(cohort.server), code, cohort.log())
                self.assertGreater(cohort.newest_checkpoint(), 0)
                self.assertIn("continue with the same flags and --resume",
                              cohort.log())

    def test_a_stopped_worker_leaves_and_is_replaced(self):
        with Cohort(workers=2, server_flags=[LONG]) as cohort:
            cohort.start()
            training(cohort)
            self.assertEqual(stop(cohort.workers[0]), 0,
                             cohort.log("worker0"))
            cohort.start_worker(0, "--stopped_exit_code=143")
            cohort.await_log("server", "rank 0: a replacement joined")
            self.assertEqual(stop(cohort.workers[0]), 143,
                             cohort.log("worker0"))

    def test_a_worker_that_still_waits_for_its_server_stops(self):
        with Cohort(workers=1) as cohort:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                cohort.address = f"127.0.0.1:{taken.getsockname()[1]}"
            worker = cohort.start_worker(0)
            cohort.await_log("worker0", "waiting to join")
            self.assertEqual(stop(worker), 0, cohort.log("worker0"))

    def test_the_second_signal_ends_at_once(self):
        with Cohort(workers=1) as cohort:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                cohort.address = f"127.0.0.1:{taken.getsockname()[1]}"
            worker = cohort.start_worker(0)
            cohort.await_log("worker0", "waiting to join")
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGINT)
            # If two signals are pending, either may come first.
            self.assertIn(worker.wait(DEADLINE_S), (130, 143))

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
        with Cohort(workers=2, server_flags=[
                "--epochs=1", "--noexit_when_done"]) as cohort:
            cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
            cohort.start()
            cohort.await_log("server", "stays up until it is stopped")
            for worker in cohort.workers.values():
                self.assertEqual(worker.wait(DEADLINE_S), 0)
            digest = cohort.model_digest()
            self.assertGreater(cohort.newest_checkpoint(), 0)
            status = run("cohortctl", "status", "--json",
                         f"--server={cohort.address}")
            self.assertTrue(json.loads(status.stdout)["ended"])
            # A worker that comes late gets a clear answer.
            late = cohort.start_worker(0)
            self.assertEqual(late.wait(DEADLINE_S), 0, cohort.log("worker0"))
            self.assertEqual(stop(cohort.server), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), digest)
            self.assertRegex(cohort.log().splitlines()[-1], "test accuracy")

    def test_a_finished_run_that_is_resumed_only_scores_again(self):
        with Cohort(workers=2, server_flags=["--epochs=1"]) as cohort:
            cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
            cohort.start()
            self.assertEqual(cohort.finish(), 0, cohort.log())
            digest = cohort.model_digest()
            cohort.start("--resume")
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), digest)


if __name__ == "__main__":
    unittest.main()
