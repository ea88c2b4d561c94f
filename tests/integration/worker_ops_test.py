"""The operations port of a worker."""

import unittest

from monitored import MonitoredCohort
from processes import get, series


def metrics(url):
    return series(get(url + "/metrics"))


class WorkerOps(unittest.TestCase):
    def test_shows_steps_phases_and_reconnects(self):
        with MonitoredCohort(workers=1, server_flags=[
                "--epochs=40", "--checkpoint_every=5"], keeps=True) as cohort:
            cohort.start()
            url = "http://" + cohort.worker_ops(0)
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
                lambda: cohort.status()["workers"][0]["phase_seconds"],
                "the worker's phases in the server's status")
            cohort.await_checkpoint(1)
            cohort.resume_server()
            cohort.wait_until(
                lambda: metrics(url)["cohort_worker_reconnects_total"] >= 1,
                "the worker to return")


if __name__ == "__main__":
    unittest.main(verbosity=2)
