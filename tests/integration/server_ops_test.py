"""The operations port of a real server while real workers train."""

import contextlib
import json
import socket
import subprocess
import time
import unittest

import processes
from processes import Cohort, kill, series

class ServerOps(unittest.TestCase):
    def setUp(self):
        self.cohort = Cohort(server_flags=["--epochs=1000",
                                           "--learning_rate=0.02"])
        self.addCleanup(self.cohort.__exit__)
        self.cohort.start()

    def series(self):
        return series(self.cohort.page())

    def version(self):
        return json.loads(self.cohort.page("/status.json"))["version"]

    def await_version(self, version):
        self.cohort.wait_until(lambda: self.version() >= version,
                               f"version {version}")

    def test_who_watches_sees_the_end(self):
        self.await_version(5)
        active = []

        def scrape():
            active.extend(value for name, value in self.series().items()
                          if name.startswith("cohort_run_active"))
            time.sleep(1)

        # Like a scraper: at an interval, whatever happens in between.
        for _ in range(4):
            scrape()
        with subprocess.Popen(
                [processes.BIN / "cohortctl", "run", "drain",
                 f"--server={self.cohort.address}"],
                stdout=subprocess.DEVNULL) as drain:
            with contextlib.suppress(OSError):
                while True:
                    scrape()
            self.assertEqual(drain.wait(timeout=60), 0)
        self.assertEqual(active[-1], 0, active)
        self.cohort.complete()
        self.assertIn("watching the run see its end", self.cohort.log())

    def test_nobody_who_watches_is_nobody_to_wait_for(self):
        # Read from the log: a request would count as watching.
        self.cohort.await_log("server", "workers are registered")
        self.cohort.drain()
        self.assertNotIn("those who watch", self.cohort.log())

    def test_sums_agree_with_each_other(self):
        self.await_version(40)
        seen = self.series()
        steps = seen["cohort_aggregation_duration_seconds_count"]
        self.assertGreaterEqual(steps, 40)
        # 2 workers with batches of 32, and a network of 3 batch norms.
        self.assertEqual(seen["cohort_samples_total"], 64 * steps)
        self.assertEqual(seen["cohort_barrier_wait_seconds_count"], 2 * steps)

        def both(name):
            return sum(seen[f'{name}{{worker="{rank}"}}'] for rank in (0, 1))

        self.assertEqual(both("cohort_barrier_last_arrival_total"), steps)
        self.assertEqual(both("cohort_bn_last_arrival_total"), 2 * 3 * steps)
        for phase in ("forward", "backward"):
            waits = f'seconds_count{{phase="{phase}"}}'
            self.assertEqual(seen[f"cohort_bn_rendezvous_wait_{waits}"],
                             2 * 3 * steps)
        self.assertGreater(
            sum("cohort_bn_drift_ratio{" in name for name in seen), 2)
        self.assertEqual(
            seen['cohort_bn_statistics_total{action="folded"}'],
            seen['cohort_pushes_total{result="applied"}'])

    def test_bytes_are_rounded_from_a_change_on_and_until_the_next(self):
        names = [f"cohort_{what}_bytes_total{{encoding=\"bfloat16\"}}"
                 for what in ("push", "pull")]

        def change(wire):
            self.cohort.ctl("policy", "set", f"--wire={wire}")

        self.await_version(5)
        series = self.series()
        self.assertEqual([series[name] for name in names], [0, 0])
        change("bf16")
        self.await_version(self.version() + 5)
        series = self.series()
        self.assertTrue(all(series[name] > 0 for name in names), series)
        change("float32")
        # Pushes that were begun before may still arrive.
        self.await_version(self.version() + 5)
        before = self.series()
        self.await_version(self.version() + 5)
        after = self.series()
        self.assertEqual([before[name] for name in names],
                         [after[name] for name in names])

    def test_200_slow_clients_hold_up_neither_training_nor_scrapes(self):
        self.await_version(5)
        host, port = self.cohort.ops.split(":")
        with contextlib.ExitStack() as slow:
            for i in range(200):
                client = slow.enter_context(
                    socket.create_connection((host, int(port)), timeout=10))
                # Requests a lot and reads nothing, or never ends its request.
                client.sendall(b"GET /chart.js HTTP/1.1\r\nHost: localhost"
                               + (b"\r\n\r\n" if i % 2 else b""))
            self.await_version(self.version() + 20)
            self.assertEqual(self.cohort.page("/readyz"), "ready\n")

    def test_who_is_gone_is_named(self):
        self.await_version(5)
        kill(self.cohort.workers[1])
        status = self.cohort.until(
            lambda: (told := json.loads(self.cohort.page("/status.json")))[
                "waited_for"] == [1] and told, "the name")
        self.assertIn("worker 1", status["state"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
