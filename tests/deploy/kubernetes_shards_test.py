#!/usr/bin/env python3
"""deploy/kubernetes/components/shards: data shards beside the server."""

import re
import textwrap
import unittest

import kubernetes_schema
import kubernetes_test
import manifests
from kubernetes_test import ALL_COMPONENTS, COMPONENT, RUN, own_run
from manifests import KUBERNETES, of_kind, pods_by_program

WHY_NOT = manifests.why_not_rendered()


def shard_lines() -> dict:
    """What REFERENCE.md tells an overlay with three data shards to say."""
    page = (KUBERNETES / "REFERENCE.md").read_text(encoding="utf-8")
    section = page.partition("## Several servers\n")[2]
    lines = re.search(r"(?:^    .*\n(?:^\n(?=    ))?)+", section, re.M).group()
    return manifests.yaml.safe_load(textwrap.dedent(lines))


@unittest.skipIf(WHY_NOT, f"overlays not rendered: {WHY_NOT}")
class ShardsTest(unittest.TestCase):

    def variants(self) -> list[list[dict]]:
        return [own_run("a", components) for components in (
            ["shards"], ["shards", "server_job"], ["shards", "tls"],
            ALL_COMPONENTS)]

    def test_fields_are_kubernetes_own_and_pods_are_safe(self):
        for documents in self.variants():
            for document in documents:
                self.assertEqual(kubernetes_schema.mismatches(document), [])
            for pod in manifests.pods(documents):
                self.assertEqual(kubernetes_test.unsafe(pod) +
                                 kubernetes_test.unprobed(pod), [])
                self.assertEqual(
                    {name for name in pod.environment
                     if name.startswith("COHORT_")} -
                    manifests.variables_of(pod.program), set())

    def check_addresses(self, documents: list[dict], count: int) -> None:
        pods = pods_by_program(documents)
        first, last, after = re.fullmatch(
            r"cohort-shard-a-\[(\d+)-(\d+)\]\.(.*):7070",
            pods["server"].environment["COHORT_SHARD_ADDRESSES"]).groups()
        shards = pods["shard"].owner
        self.assertEqual(shards["metadata"]["name"], "cohort-shard-a")
        self.assertEqual(int(first), shards["spec"]["ordinals"]["start"])
        self.assertEqual((int(last), shards["spec"]["replicas"]),
                         (count, count))
        # Names of the pods exist through this Service only.
        self.assertEqual(after, shards["spec"]["serviceName"])
        service = of_kind(documents, "Service")[after]["spec"]
        self.assertEqual(service["clusterIP"], "None")
        self.assertIs(service["publishNotReadyAddresses"], True)
        self.assertLessEqual(
            service["selector"].items(),
            shards["spec"]["template"]["metadata"]["labels"].items())

    def test_the_server_names_each_data_shard(self):
        for documents in self.variants():
            self.check_addresses(documents, 2)

    def test_the_lines_of_the_page_make_three_data_shards(self):
        lines = shard_lines()
        self.assertEqual(lines.pop("components"), ["../../components/shards"])
        self.check_addresses(own_run("a", ["shards"], **lines), 3)

    def test_the_image_is_the_servers_wherever_it_is_set(self):
        pinned = [{"name": "cohort-server", "newName": "example.com/server",
                   "newTag": "7"}]
        for images in ([], pinned):
            pods = pods_by_program(own_run("a", ["shards"], images=images))
            self.assertEqual(pods["shard"].container["image"],
                             pods["server"].container["image"])

    def test_a_data_shard_has_no_settings_of_the_run(self):
        """They come from the server, and the data shard would refuse some."""
        pod = pods_by_program(own_run("a", ["shards"]))["shard"]
        self.assertNotIn("envFrom", pod.container)
        self.assertEqual(pod.environment["COHORT_WORKERS"], "4")
        self.assertEqual(pod.environment["COHORT_EXIT_WHEN_DONE"], "false")
        self.assertEqual(pod.environment["COHORT_LISTEN"], "0.0.0.0:7070")
        self.assertEqual([volume["name"] for volume in pod.spec["volumes"]],
                         ["tmp"])
        self.assertNotIn("volumeClaimTemplates", pod.owner["spec"])

    def test_cpus_follow_the_sizing_rule(self):
        pod = pods_by_program(own_run("a", ["shards"]))["shard"]
        self.assertEqual(pod.container["resources"]["requests"]["cpu"], str(
            int(pod.environment["COHORT_FOLD_THREADS"]) + 1))

    def test_only_server_and_workers_reach_the_data_shards(self):
        for documents in self.variants():
            policies = of_kind(documents, "NetworkPolicy")
            shard = {"app.kubernetes.io/part-of": "cohort", RUN: "a",
                     COMPONENT: "shard"}
            clients = {
                "matchLabels": {"app.kubernetes.io/part-of": "cohort",
                                RUN: "a"},
                "matchExpressions": [{"key": COMPONENT, "operator": "In",
                                      "values": ["server", "worker"]}]}
            spec = policies["cohort-shard-a"]["spec"]
            self.assertEqual(spec["podSelector"], {"matchLabels": shard})
            self.assertEqual(spec["ingress"], [{
                "from": [{"podSelector": clients}],
                "ports": [{"protocol": "TCP", "port": 7070}]}])
            spec = policies["cohort-shard-clients-a"]["spec"]
            self.assertEqual(spec["podSelector"], clients)
            to_shards, to_names = spec["egress"]
            self.assertEqual(to_shards, {
                "to": [{"podSelector": {"matchLabels": shard}}],
                "ports": [{"protocol": "TCP", "port": 7070}]})
            # The base's rule for workers.
            self.assertEqual(to_names,
                             policies["cohort-worker-a"]["spec"]["egress"][1])
            # Data shards open no connections.
            for policy in policies.values():
                if "Egress" in policy["spec"]["policyTypes"]:
                    self.assertNotEqual(
                        policy["spec"]["podSelector"].get(
                            "matchLabels", {}).get(COMPONENT), "shard")

    def test_data_shards_are_moved_one_by_one(self):
        for documents in self.variants():
            budget = of_kind(documents, "PodDisruptionBudget")[
                "cohort-shard-a"]["spec"]
            labels = pods_by_program(documents)["shard"].owner["spec"]["template"][
                "metadata"]["labels"]
            self.assertEqual(budget["maxUnavailable"], 1)
            self.assertLessEqual(budget["selector"]["matchLabels"].items(),
                                 labels.items())

    def test_a_data_shard_presents_the_certificate_of_a_server(self):
        for components in (["shards", "tls"], ALL_COMPONENTS):
            documents = own_run("a", components)
            pod = pods_by_program(documents)["shard"]
            self.assertEqual(kubernetes_test.mounted(pod), {
                "/etc/cohort/tls": "cohort-server-tls-a"})
            self.assertEqual(
                {name: value for name, value in pod.environment.items()
                 if name.startswith(("COHORT_TLS", "COHORT_INSECURE"))},
                {f"COHORT_TLS_{name.upper()}": f"/etc/cohort/tls/{file}"
                 for name, file in (("cert", "tls.crt"), ("key", "tls.key"),
                                    ("ca", "ca.crt"))})
            service = of_kind(documents, "Service")["cohort-shard-a"]
            self.assertEqual(service["spec"]["ports"][0]["appProtocol"],
                             "https")


if __name__ == "__main__":
    unittest.main()
