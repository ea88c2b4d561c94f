#!/usr/bin/env python3
"""Checks that the dashboards' files suit readers and Grafana."""

import re
import unittest

import monitoring_files as files

SCHEMA_VERSION = 38  # Grafana 10; 9 reads it.
VARIABLES = ("datasource", "run", "instance", "worker")
# Variables that Grafana itself replaces.
GRAFANA_VARIABLES = ("__rate_interval",)
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24


class DashboardsTest(unittest.TestCase):

    def setUp(self):
        self.dashboards = files.dashboards()

    def panels(self):
        """Yields every panel with where it is, for messages."""
        for name, dashboard in self.dashboards.items():
            for panel in files.panels(dashboard):
                yield f"{name}: {panel['title']}", panel

    def test_the_four_are_there_each_with_its_own_name(self):
        self.assertEqual(set(self.dashboards),
                         {"overview.json", "stragglers.json", "server.json",
                          "batch_norm.json"})
        for key in ("uid", "title"):
            values = [d[key] for d in self.dashboards.values()]
            self.assertEqual(len(set(values)), len(values), values)

    def test_format_variables_and_links_are_those_of_all(self):
        for name, dashboard in self.dashboards.items():
            with self.subTest(dashboard=name):
                self.assertEqual(dashboard["schemaVersion"], SCHEMA_VERSION)
                self.assertNotIn("id", dashboard)
                self.assertEqual(
                    tuple(v["name"] for v in dashboard["templating"]["list"]),
                    VARIABLES)
                self.assertIn("cohort", dashboard["tags"])
                self.assertTrue(any(link["tags"] == ["cohort"]
                                    for link in dashboard["links"]))
                self.assertTrue(any("alerting" in link["url"]
                                    for link in dashboard["links"]))
                self.assertTrue(any(link["url"] == "http://${instance}/"
                                    for link in dashboard["links"]))

    def test_policy_changes_are_marked_on_every_dashboard(self):
        for name, dashboard in self.dashboards.items():
            self.assertTrue(any(
                "cohort_policy_changes_total" in annotation.get("expr", "")
                for annotation in dashboard["annotations"]["list"]), name)

    def test_ids_are_given_once(self):
        for name, dashboard in self.dashboards.items():
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(set(ids)), len(ids), name)

    def test_every_panel_stands_under_a_question(self):
        for name, dashboard in self.dashboards.items():
            self.assertEqual(dashboard["panels"][0]["type"], "row", name)
            for panel in dashboard["panels"]:
                if panel["type"] == "row":
                    self.assertTrue(panel["title"].endswith("?"),
                                    panel["title"])

    def test_panels_do_not_overlap_or_leave_the_page(self):
        for name, dashboard in self.dashboards.items():
            taken = set()
            for panel in dashboard["panels"]:
                at = panel["gridPos"]
                self.assertLessEqual(at["x"] + at["w"], COLUMNS)
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                         for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(cells & taken, f"{name}: {panel['title']}")
                taken |= cells

    def test_every_panel_has_a_description_and_a_unit(self):
        for where, panel in self.panels():
            with self.subTest(panel=where):
                self.assertRegex(panel["description"], r"^[A-Z0-9].{9,}[.?]$")
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])

    def test_every_panel_asks_the_chosen_data_source(self):
        for where, panel in self.panels():
            with self.subTest(panel=where):
                self.assertEqual(panel["datasource"], DATASOURCE)
                self.assertGreater(len(panel["targets"]), 0)
                references = [target["refId"] for target in panel["targets"]]
                self.assertEqual(len(set(references)), len(references))
                for target in panel["targets"]:
                    self.assertEqual(target["datasource"], DATASOURCE)

    def test_queries_use_only_variables_that_exist(self):
        for dashboard in self.dashboards.values():
            for where, query in files.dashboard_queries(dashboard):
                for variable in re.findall(r"\$\{?(\w+)", query):
                    self.assertIn(variable, VARIABLES + GRAFANA_VARIABLES,
                                  where)

    @unittest.skipIf(files.yaml is None,
                     "python3-yaml is not installed: deploy/install-deps test")
    def test_links_to_alerts_name_alerts_that_exist(self):
        alerts, linked = set(files.alerts()), set()
        for where, panel in self.panels():
            for link in panel.get("links", ()):
                name = link["title"].removeprefix("Alert ")
                self.assertIn(name, alerts, where)
                self.assertTrue(link["url"].endswith(f"={name}"), where)
                linked.add(name)
        self.assertEqual(alerts - linked, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
