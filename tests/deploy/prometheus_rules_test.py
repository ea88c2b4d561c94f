#!/usr/bin/env python3
"""Alerts and recording rules: promtool's verdict, their cases, the runbook."""

import re
import shutil
import subprocess
import unittest

import manifests
import monitoring_files as files

CONFIGURATIONS = ("prometheus.yml", "compose.yml", "compose.tls.yml")
# The parts of a runbook's entry, each once and in this order.
SHAPE = ["Meaning", "Causes", "See", "Do"]
SEVERITIES = ("critical", "warning", "info")


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True,
                          text=True, timeout=120, check=False)


@unittest.skipIf(shutil.which("promtool") is None,
                 "promtool is not installed: deploy/install-deps test")
class PromtoolTest(unittest.TestCase):

    def assert_clean(self, result):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_configuration_and_rules_are_clean(self):
        for config in CONFIGURATIONS:
            # Certificates are not where the containers have them.
            syntax = ["--syntax-only"] if "tls" in config else []
            self.assert_clean(promtool(
                "check", "config", *syntax, files.PROMETHEUS / config))
        for rules in files.RULE_FILES:
            self.assert_clean(promtool(
                "check", "rules", "--lint=all", "--lint-fatal",
                files.PROMETHEUS / "rules" / rules))

    def test_every_case_comes_out_as_written(self):
        tests = sorted((files.PROMETHEUS / "tests").glob("*.yml"))
        self.assertGreater(len(tests), 0)
        self.assert_clean(promtool("test", "rules", *tests))


@unittest.skipIf(files.yaml is None,
                 "python3-yaml is not installed: deploy/install-deps test")
class AlertsTest(unittest.TestCase):

    def setUp(self):
        self.alerts = files.alerts()
        self.runbook = (files.PROMETHEUS / "RUNBOOK.md").read_text(
            encoding="utf-8")

    def cases(self):
        """Yields every check of every case."""
        for path in sorted((files.PROMETHEUS / "tests").glob("*.yml")):
            content = files.yaml.safe_load(path.read_text(encoding="utf-8"))
            for case in content["tests"]:
                yield from case["alert_rule_test"]

    def test_each_alert_is_shown_to_fire_and_to_stay_silent(self):
        fires, silent = set(), set()
        for check in self.cases():
            (fires if check["exp_alerts"] else silent).add(check["alertname"])
        self.assertEqual(fires, set(self.alerts))
        self.assertEqual(silent, set(self.alerts))

    def test_each_alert_says_how_bad_it_is_and_where_to_read_on(self):
        self.assertGreaterEqual(len(self.alerts), 15)
        for name, alert in self.alerts.items():
            with self.subTest(alert=name):
                self.assertIn(alert["labels"]["severity"], SEVERITIES)
                annotations = alert["annotations"]
                self.assertIn("{{ $labels.instance }}", annotations["summary"])
                self.assertEqual(
                    annotations["runbook_url"],
                    "{{ $externalURL }}/user/RUNBOOK.md#" + name.lower())

    def test_sums_and_matches_keep_the_namespace(self):
        for where, query in [*files.recorded().items(), *(
                (name, rule["expr"]) for name, rule in self.alerts.items())]:
            for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
                with self.subTest(rule=where):
                    self.assertIn("namespace", labels.split(", "))

    def test_series_that_others_export_too_are_those_of_our_jobs(self):
        for where, query in [*files.recorded().items(), *(
                (name, rule["expr"]) for name, rule in self.alerts.items())]:
            for series in re.findall(r"(?<!:)\bgrpc_server_\w+(?:\{[^}]*\})?", query):
                with self.subTest(rule=where):
                    self.assertIn('job="cohort-server"', series)

    def test_runbook_has_a_paragraph_for_each_alert_and_no_other(self):
        parts = re.split(r"^### (\w+)\n", self.runbook, flags=re.M)[1:]
        paragraphs = dict(zip(parts[::2], parts[1::2]))
        self.assertEqual(set(paragraphs), set(self.alerts))
        for name, text in paragraphs.items():
            with self.subTest(alert=name):
                self.assertEqual(
                    re.findall(r"^- \*\*([\w ]+):\*\*", text, re.M), SHAPE)

    def test_links_within_the_runbook_lead_somewhere(self):
        anchors = {name.lower() for name in self.alerts}
        for anchor in re.findall(r"\(#([^)]*)\)", self.runbook):
            self.assertIn(anchor, anchors)

    def test_recorded_series_are_used_and_alerts_read_only_those(self):
        recorded = set(files.recorded())
        used = set()
        for _, query in files.all_queries():
            used |= {name for name in files.metric_names(query) if ":" in name}
        self.assertEqual(used, recorded)


@unittest.skipIf(files.yaml is None,
                 "python3-yaml is not installed: deploy/install-deps test")
class ConfigurationsTest(unittest.TestCase):

    def load(self, name):
        return files.yaml.safe_load(
            (files.PROMETHEUS / name).read_text(encoding="utf-8"))

    def jobs(self, name):
        return {job["job_name"]: job
                for job in self.load(name)["scrape_configs"]}

    def test_they_differ_in_their_targets_and_in_tls_only(self):
        hand, *others = (self.load(name) for name in CONFIGURATIONS)
        for other in others:
            for part in ("global", "rule_files"):
                self.assertEqual(hand[part], other[part])
        self.assertEqual(list(self.jobs("prometheus.yml")),
                         list(self.jobs("compose.yml")))
        encrypted = self.jobs("compose.tls.yml")
        for name, job in self.jobs("compose.yml").items():
            if name != "prometheus":
                self.assertEqual(encrypted[name].pop("scheme"), "https")
                del encrypted[name]["tls_config"]
            self.assertEqual(encrypted[name], job)

    def test_the_server_by_hand_is_where_it_listens_by_default(self):
        config, = self.jobs("prometheus.yml")["cohort-server"]["static_configs"]
        self.assertEqual(
            [f'"{target}"' for target in config["targets"]],
            [manifests.default_of("server", "ops_listen")])

    def test_others_by_hand_are_listed_in_files_that_are_there(self):
        for job, file in (("cohort-worker", "workers.yml"),
                          ("cohort-shard", "shards.yml")):
            config, = self.jobs("prometheus.yml")[job]["file_sd_configs"]
            self.assertEqual(config["files"], [file])
            self.assertEqual(self.load(file), [{"targets": []}])


class MetricNamesTest(unittest.TestCase):
    """The reader of queries, on queries whose names are known."""

    QUERIES = (
        ("a_total", {"a_total"}),
        ('rate(a_total{b="c{d}", e=~"f|g"}[5m])', {"a_total"}),
        ("sum by (b, c) (rate(a[1m])) / on (d) group_left () e", {"a", "e"}),
        ("sum(a) without (b)", {"a"}),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket[5m])))",
         {"a_bucket"}),
        ("i:a:rate5m > 0.5 and on (b) c offset 5m == 1", {"i:a:rate5m", "c"}),
        ("a < Inf unless b == bool 1e9 or vector(0)", {"a", "b"}),
        ("predict_linear(a[1h], 4 * 3600) < 0", {"a"}),
        ('quantile_over_time(0.5, a{i=~"$instance"}[$__rate_interval])',
         {"a"}),
    )

    def test_names_are_found_and_nothing_else(self):
        for query, names in self.QUERIES:
            with self.subTest(query=query):
                self.assertEqual(files.metric_names(query), names)

    def test_conditions_are_found(self):
        self.assertEqual(
            list(files.matchers('rate(a{b="c", d!~"e|f"}[5m]) > g{h=~"i"}')),
            [("a", "b", "=", "c"), ("a", "d", "!~", "e|f"),
             ("g", "h", "=~", "i")])


if __name__ == "__main__":
    unittest.main(verbosity=2)
