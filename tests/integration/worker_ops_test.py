"""The operations port of a worker."""

import re
import socket
import unittest
import urllib.error
import urllib.request

from processes import Cohort, kill, run

LINE = re.compile(r'^(\w+)(\{[^}]*\})? (\S+)$', re.M)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def metrics(url):
    """{name with labels: value}."""
    return {name + (labels or ""): float(value)
            for name, labels, value in LINE.findall(get(url + "/metrics"))}


class WorkerOps(unittest.TestCase):
    def test_shows_steps_phases_and_reconnects(self):
        with Cohort(workers=1, server_flags=["--epochs=40"]) as cohort:
            cohort.server_flags += [f"--checkpoint_dir={cohort.checkpoints}",
                                    "--checkpoint_every=5"]
            cohort.start_server()
            cohort.start_worker(0, "--ops_listen=127.0.0.1:0")
            found = []

            def listens():
                found[:] = re.findall(r"operations port: (http://\S+)/metrics",
                                      cohort.log("worker0"))
                return bool(found)
            cohort.wait_until(listens, "the worker's operations port")
            url = found[0]
            self.assertEqual(get(url + "/livez"), "alive\n")
            cohort.wait_until(
                lambda: metrics(url)["cohort_worker_steps_total"] >= 5,
                "five steps")
            told = metrics(url)
            self.assertGreaterEqual(told["cohort_worker_samples_total"],
                                    32 * told["cohort_worker_steps_total"] - 32)
            self.assertGreater(told["cohort_worker_loss"], 0)
            self.assertEqual([value for name, value in told.items() if
                              name.startswith("cohort_build_info{")], [1])
            self.assertGreater(told["cohort_worker_pulled_version"], 0)
            self.assertGreater(told["process_resident_memory_bytes"], 1e6)
            for phase in ("data", "forward", "rendezvous", "backward", "push",
                          "wait"):
                label = f'{{phase="{phase}"}}'
                self.assertGreater(
                    told[f"cohort_worker_step_duration_seconds_sum{label}"], 0)
            get(url + "/readyz")
            # They are sent with the next heartbeat.
            cohort.wait_until(
                lambda: '"phase_seconds":{"backward":' in run(
                    "cohortctl", "status", "--json",
                    f"--server={cohort.address}").stdout,
                "the worker's phases in the server's status")
            cohort.wait_until(lambda: cohort.newest_checkpoint() > 0,
                              "a checkpoint")
            kill(cohort.server)
            cohort.start_server("--resume")
            cohort.wait_until(
                lambda: metrics(url)["cohort_worker_reconnects_total"] >= 1,
                "the worker to return")

    def test_addresses_that_will_not_do_are_refused(self):
        flags = ["--dataset=synthetic", "--model=smooth"]
        other = run("cohort-worker", "--ops_listen=0.0.0.0:0", *flags)
        self.assertEqual(other.returncode, 3, other.stderr)
        self.assertIn("--insecure", other.stderr)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            used = run("cohort-worker", f"--ops_listen={address}", *flags)
        self.assertNotEqual(used.returncode, 0)
        self.assertIn(address, used.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
