#!/usr/bin/env python3
"""The live page of a real run, in a real browser."""

import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]
                       / "integration"))

import page_case  # noqa: E402
from processes import Cohort, kill  # noqa: E402

HOSTILE = "<img src=x onerror=alert(1)>"

# A worker gives the name of its machine: here a name that is markup, in a
# separate namespace.
RENAMED = ["unshare", "--uts", sys.executable, "-c",
           "import os, socket, sys; socket.sethostname(sys.argv[1]); "
           "os.execv(sys.argv[2], sys.argv[2:])", HOSTILE]

LAST_STEP = """
const points = Chart.getChart(document.querySelector('#curve-loss canvas'))
    ?.data.datasets[0]?.data ?? [];
return points.at(-1)?.x ?? 0;
"""


def can_rename():
    """Whether this user may give a process another machine name."""
    return subprocess.run([*RENAMED, "/bin/true"], capture_output=True,
                          check=False).returncode == 0


class LiveRun(page_case.PageCase):
    def setUp(self):
        super().setUp()
        # Long enough for the checks; the rest is not waited for.
        self.cohort = Cohort(server_flags=["--epochs=1000",
                                           "--learning_rate=0.02"])
        self.addCleanup(self.cohort.__exit__)

    def start(self):
        self.cohort.start()
        self.open()

    def open(self):
        self.browser.open(f"http://{self.cohort.ops}/")

    def status(self):
        return json.loads(self.cohort.page("/status.json"))

    def say(self, selector):
        return self.browser.text(selector)

    def last_step(self):
        return self.browser.script(LAST_STEP)

    def await_training(self, steps=20):
        self.browser.wait_until(lambda: self.last_step() >= steps,
                                "curves")

    def test_curves_grow_and_numbers_are_those_of_the_status(self):
        self.start()
        self.await_training()
        before = self.last_step()
        self.browser.wait_until(lambda: self.last_step() > before + 5,
                                "longer curves")
        # The page reports a step that takes long while it waits.
        self.browser.wait_until(
            lambda: "Training, 2 of 2 workers" in self.say("h1") and
            re.search(r"^[\d,.]+ images/s$", self.say("#tile-speed .value")),
            "the speed")
        step = int(re.search(r"step ([\d,]+)", self.say("#progress-facts"))
                   .group(1).replace(",", ""))
        self.assertLessEqual(step, self.status()["version"])
        self.assertGreater(step, before)
        self.assertIn("process", self.say("#worker-rows"))
        self.browser.wait_until(lambda: "worker 1" in self.say("#phase-bars"),
                                "step times")
        self.assertGreater(len(self.say("#bn-bars").split("\n")), 3)
        self.take_pictures("live-training")
        self.assertNoComplaints()

    def test_killed_worker_is_named(self):
        self.start()
        self.await_training()
        kill(self.cohort.workers[1])
        # Three commands to the browser; the page may change between them.
        self.browser.wait_until(
            lambda: "worker 1" in self.say("h1") and
            "Worker 1" in self.say("#tile-holdup") and
            "waited for" in self.say("#worker-rows tr:first-child"),
            "the name")
        self.take_pictures("live-waiting")
        self.cohort.start_worker(1)
        self.browser.wait_until(
            lambda: "Training, 2 of 2 workers" in self.say("h1"),
            "the replacement")
        # A page that returns later shows it as well.
        self.browser.wait_until(
            lambda: "a replacement joined" in self.say("#event-rows") and
            "Rank 1 is lost" in self.say("#event-rows"), "the events")
        self.assertNoComplaints()

    def test_change_of_policy_appears(self):
        self.start()
        self.await_training()
        changed = self.cohort.ctl(
            "policy", "set", "--aggregation=async", "--normalization=local")
        version = int(re.search(r"at step (\d+)", changed.stdout).group(1))
        self.browser.wait_until(
            lambda: f"{version:,}" in self.say("#policy-rows") and
            "aggregation=async" in self.say("#policy-rows"), "the change")
        self.assertTrue(self.say("#policy-text").startswith("Async"))
        self.assertEqual([mark["x"] for mark in self.chart("$marks")],
                         [version])
        self.browser.wait_until(lambda: self.last_step() > version + 40,
                                "steps after the change")
        self.browser.wait_until(
            lambda: "Steps between" in self.say("#staleness"), "staleness")
        self.take_pictures("live-changed")
        self.assertNoComplaints()

    def test_hostile_machine_name_is_text(self):
        if not can_rename():
            self.skipTest("this user may not rename a machine (unshare --uts)")
        self.cohort.start_server()
        self.cohort.start_worker(0)
        self.cohort.start_worker(1, wrapper=RENAMED)
        self.open()
        # An open dialog would fail each later command.
        self.browser.wait_until(lambda: HOSTILE in self.say("#worker-rows"),
                                "the name")
        self.assertEqual(self.count("body img"), 0)
        self.assertNoComplaints()

    def drain_and_await_the_end(self):
        """The server stays until the page's next request."""
        self.cohort.drain()
        self.browser.wait_until(
            lambda: "The run is over" in self.say("#banner"),
            "the end to be noticed")

    def test_finished_run_stays_shown(self):
        self.start()
        self.await_training()
        self.drain_and_await_the_end()
        self.assertGreaterEqual(self.last_step(), 20)
        self.assertIn("drained", self.say("h1").lower())
        self.check_report(self.say("h1"), self.last_step())

    def check_report(self, state, last_step):
        """The saved page shows the end without a server and a network."""
        report = self.cohort.results / "report.html"
        # Until now the page has asked a server that is gone.
        self.browser.open("about:blank")
        self.browser.complaints()
        self.browser.open(report.as_uri())
        self.assertEqual(self.say("h1"), state)
        self.assertEqual(self.last_step(), last_step)
        self.assertIn("report of", self.say("#fresh"))
        self.assertEqual(self.say("#banner"), "")
        self.assertIn("process", self.say("#worker-rows"))
        self.assertNoComplaints()
        self.take_pictures("report")

    def test_end_is_shown_to_who_opens_the_page_in_the_last_moment(self):
        self.cohort.start()
        self.cohort.await_log("server", "workers are registered")
        self.open()
        self.drain_and_await_the_end()


if __name__ == "__main__":
    page_case.main()
