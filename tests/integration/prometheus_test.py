"""Dashboards, rules and metrics beside each other, and a real Prometheus."""

import subprocess
import time
import unittest

import processes
from monitored import (MonitoredCohort, Prometheus, faster, has_prometheus,
                       monitoring_files as files, samples)

# Dense labels, so that there is a mean IoU; an epoch takes seconds.
SEGMENTATION = ["--model=unet", "--width=4", "--batch_size=32",
                "--dataset=synthetic-segmentation"]
EPOCHS = "--epochs=1000"
# Values of these labels are all exported from the start, so a condition that
# names another value would never be met.
CLOSED_LABELS = frozenset({"action", "kind", "level", "phase", "reason",
                           "result", "split", "state"})

# These panels would only show events that have not happened.
SILENT_PANELS = frozenset({
    ("overview.json", "Alerts"),
    ("server.json", "Calls by code"),
    # Of runs with several shards.
    ("server.json", "Shards connected"),
    ("server.json", "Waited for alone"),
    ("server.json", "Preparing a commit"),
})
# Series of runs with several shards, which shard_ops_test.py checks.
SHARDS = "cohort_shard_"


class Exported:
    """The names and label values that processes export."""

    def __init__(self, pages):
        self.values = {}
        for page in pages:
            for name, labels, _ in samples(page):
                known = self.values.setdefault(name, {})
                for label, value in labels.items():
                    known.setdefault(label, set()).add(value)

    def unmet(self, matcher):
        """The reason why a condition can never be met, or None."""
        known = self.values.get(matcher.metric)
        if known is None or matcher.label in ("job", "instance"):
            return None
        if matcher.label not in known:
            return f"{matcher.metric} has no label {matcher.label}"
        if matcher.label not in CLOSED_LABELS:
            return None
        for value in matcher.value.split("|"):
            if value not in known[matcher.label]:
                return f"{matcher.metric} has no {matcher.label}={value}"
        return None


def wanted_names():
    """Returns (name, where) of every exported metric that a query uses."""
    not_exported = set(files.recorded()) | files.BUILT_IN
    return {(name, where) for where, query in files.all_queries()
            for name in files.metric_names(query) - not_exported
            if not name.startswith(SHARDS)}


def missing_names(wanted, exported):
    return sorted((name, where) for name, where in wanted
                  if name not in exported.values)


def monitored_segmentation():
    """Exports every metric: a mean IoU, a gradient norm, checkpoints, and
    what only an encrypted run has."""
    cohort = MonitoredCohort(
        server_flags=[EPOCHS, "--clip_norm=1", "--checkpoint_every=4"],
        worker_flags=SEGMENTATION, keeps=True)
    cohort.encrypt()
    return cohort


def empty_panels(prometheus):
    """Runs every query of every dashboard; raises if one is refused."""
    empty = []
    for name, dashboard in files.dashboards().items():
        for panel in files.panels(dashboard):
            answers = [
                prometheus.query(faster(files.instantiated(target["expr"])))
                for target in panel["targets"]]
            if not any(answers) and (name, panel["title"]) not in SILENT_PANELS:
                empty.append((name, panel["title"]))
    return empty


def last_of(what):
    """Polls until nothing is wrong or time is up; returns the problems."""
    end = time.monotonic() + processes.PATIENCE_S
    while True:
        result = what()
        if not result or time.monotonic() > end:
            return result
        time.sleep(1)


@unittest.skipIf(files.yaml is None,
                 "python3-yaml is not installed: deploy/install-deps test")
class Names(unittest.TestCase):

    def test_everything_that_is_asked_for_is_exported(self):
        wanted = wanted_names()
        with monitored_segmentation() as cohort:
            cohort.start()
            # Some appear with the first evaluation, or with the first sample
            # of batch norm's drift.
            self.assertEqual(last_of(lambda: missing_names(
                wanted, Exported(cohort.pages()))), [])
            exported = Exported(cohort.pages())
        unmet = {f"{where}: {why}" for where, query in files.all_queries()
                 for matcher in files.matchers(query)
                 if (why := exported.unmet(matcher))}
        self.assertEqual(sorted(unmet), [])

    def test_name_that_nobody_exports_is_found(self):
        missing = missing_names(wanted_names(), Exported(["cohort_loss 1"]))
        self.assertIn(("cohort_run_active", "CohortTrainingStalled"), missing)
        self.assertNotIn("cohort_loss", {name for name, _ in missing})
        page = 'cohort_pushes_total{result="applied"} 1'
        for label, value, met in (("result", "applied", True),
                                  ("result", "applied|lost", False),
                                  ("verdict", "applied", False)):
            matcher = files.Matcher("cohort_pushes_total", label, "=", value)
            self.assertEqual(Exported([page]).unmet(matcher) is None, met)


@unittest.skipUnless(has_prometheus(),
                     "prometheus is not installed: deploy/install-deps test")
class RealPrometheus(unittest.TestCase):

    def test_pages_are_what_promtool_expects(self):
        with MonitoredCohort(server_flags=[EPOCHS]) as cohort:
            cohort.start()
            for page in cohort.pages():
                result = subprocess.run(
                    ["promtool", "check", "metrics"], input=page, text=True,
                    capture_output=True, timeout=60, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""),
                                 page)

    def test_throughput_the_killed_worker_and_its_alert_are_seen(self):
        with MonitoredCohort(server_flags=[
                EPOCHS, "--learning_rate=0.02",
                "--on_worker_loss=wait"]) as cohort:
            cohort.start()
            with Prometheus(cohort) as prometheus:
                self.check_healthy(prometheus)
                processes.kill(cohort.workers[1])
                self.check_loss(prometheus)
                cohort.start_worker(1)
                self.check_recovery(prometheus)

    def test_every_panel_is_answered_and_shows_something(self):
        with monitored_segmentation() as cohort:
            cohort.start()
            with Prometheus(cohort) as prometheus:
                self.assertEqual(
                    last_of(lambda: empty_panels(prometheus)), [])

    def check_healthy(self, prometheus):
        prometheus.wait_until(
            lambda: (prometheus.value("instance:cohort_samples:rate5m")
                     or 0) > 0, "throughput")
        prometheus.wait_until(
            lambda: prometheus.value("cohort_workers_registered") == 2,
            "both workers")
        prometheus.wait_until(
            lambda: [value for _, value in
                     prometheus.query('up{job=~"cohort-.*"}')] == [1, 1, 1],
            "all three targets")
        # At the start of the run it may be pending for a moment.
        prometheus.wait_until(
            lambda: prometheus.alert_state("CohortWorkersMissing") is None,
            "the alert to be silent")
        # Otherwise a query that fails on real labels would go unnoticed.
        rules = prometheus.wait_until(
            lambda: all(rule["health"] != "unknown"
                        for rule in prometheus.rules())
            and prometheus.rules(), "every rule's first evaluation")
        self.assertEqual([(rule["name"], rule["lastError"]) for rule in rules
                          if rule["health"] != "ok"], [])

    def check_loss(self, prometheus):
        prometheus.wait_until(
            lambda: prometheus.value(
                "cohort_workers_registered < cohort_workers_expected") == 1,
            "the missing worker")
        prometheus.wait_until(
            lambda: prometheus.alert_state("CohortWorkersMissing") == "firing",
            "the alert")
        # The alert waited for its `for`, and its record cannot be missed.
        self.assertGreater(prometheus.value(
            'count_over_time(ALERTS{alertname="CohortWorkersMissing", '
            'alertstate="pending"}[1m])'), 1)
        self.assertGreater(prometheus.value("cohort_waiting_seconds"), 0)
        self.assertEqual(prometheus.value(
            'up{job="cohort-worker"} == 0'), 0)
        alert = next(alert for alert in prometheus.api("alerts")["alerts"]
                     if alert["labels"]["alertname"] == "CohortWorkersMissing")
        self.assertIn("workers there: 1,", alert["annotations"]["summary"])

    def check_recovery(self, prometheus):
        prometheus.wait_until(
            lambda: prometheus.value("cohort_workers_registered") == 2,
            "the replacement")
        prometheus.wait_until(
            lambda: prometheus.alert_state("CohortWorkersMissing") is None,
            "the alert to end")
        before = prometheus.value("cohort_samples_total")
        prometheus.wait_until(
            lambda: (prometheus.value("cohort_samples_total") or 0) > before,
            "training to continue")


if __name__ == "__main__":
    unittest.main(verbosity=2)
