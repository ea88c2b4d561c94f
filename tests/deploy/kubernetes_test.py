#!/usr/bin/env python3
"""deploy/kubernetes: the objects for a cluster, rendered and parsed."""

import copy
import pathlib
import re
import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterator

import kubernetes_schema
import manifests
from manifests import DEPLOY, KUBERNETES, OVERLAYS, Pod

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
# Where the overlay's suffix changes it.
SERVER_NAMES = {"example": "cohort-server-first"}


def selectors(value: object) -> Iterator[dict]:
    """Yields the labels of every selector of pods in an object."""
    if isinstance(value, list):
        for item in value:
            yield from selectors(item)
    elif isinstance(value, dict):
        if value.get("kind") == "Service":
            yield value["spec"]["selector"]
        for name, inner in value.items():
            if name in ("selector", "podSelector", "labelSelector") and (
                    isinstance(inner, dict) and "matchLabels" in inner):
                yield inner["matchLabels"]
            elif name not in ("data", "metadata"):
                yield from selectors(inner)


def unsafe(pod: Pod) -> list[str]:
    """Returns the pod settings that the `restricted` level, or we, refuse."""
    spec, container = pod.spec, pod.container
    security = spec.get("securityContext", {})
    inner = container.get("securityContext", {})
    wanted = {
        "runs as root": (security.get("runAsNonRoot"), True),
        "no seccomp": (security.get("seccompProfile"),
                       {"type": "RuntimeDefault"}),
        "may gain privileges": (inner.get("allowPrivilegeEscalation"), False),
        "writable root": (inner.get("readOnlyRootFilesystem"), True),
        "capabilities": (inner.get("capabilities"), {"drop": ["ALL"]}),
        "has a token": (spec.get("automountServiceAccountToken"), False),
        # Service links would set COHORT_SERVER_PORT and the like.
        "service links": (spec.get("enableServiceLinks"), False),
    }
    found = [what for what, (got, want) in wanted.items() if got != want]
    if security.get("runAsUser", 0) < 1000:
        found.append("no user id of its own")
    if spec.get("terminationGracePeriodSeconds", 0) < 30:
        found.append("too little grace")
    resources = container.get("resources", {})
    if "memory" not in resources.get("limits", {}):
        found.append("no memory limit")
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys():
        found.append("no requests")
    image = container["image"].rpartition("/")[2]
    if not re.search(r":\d", image):
        found.append(f"image {image} has no version")
    return found


def unprobed(pod: Pod) -> list[str]:
    """Returns the probes that do not use the operations port."""
    wanted = {"startupProbe": "/livez", "livenessProbe": "/livez"}
    if pod.program == "server" and pod.owner.get("kind") == "StatefulSet":
        wanted["readinessProbe"] = "/readyz"
    found = []
    for probe, path in wanted.items():
        got = pod.container.get(probe, {}).get("httpGet")
        if got != {"path": path, "port": "ops"}:
            found.append(f"{probe}: {got}")
    port = {"server": 7071, "worker": 7072}[pod.program]
    if pod.port("ops") != port or pod.environment.get(
            "COHORT_OPS_LISTEN") != f"0.0.0.0:{port}":
        found.append("the operations port is elsewhere")
    return found


@unittest.skipIf(manifests.yaml is None, manifests.NO_YAML)
class ManifestsTest(unittest.TestCase):
    """Rules for the base's files, the examples and the rendered overlays."""

    def all_documents(self) -> dict[str, list[dict]]:
        sources = {path.name: manifests.load(path)
                   for path in sorted((KUBERNETES / "examples").glob("*.yaml"))}
        self.assertEqual(set(sources), {"jobset.yaml", "tfjob.yaml"})
        why_not = manifests.why_not_rendered()
        if why_not:
            # Checks that need no rendering; the skipped RenderedTest reports
            # the rest.
            sources["base"] = [
                document for path in sorted((KUBERNETES / "base").glob("*.yaml"))
                for document in manifests.load(path)
                if document["kind"] != "Kustomization"]
        else:
            sources.update({overlay: manifests.render(overlay)
                            for overlay in OVERLAYS})
        return sources

    def check_pods(self, check: Callable[[Pod], None]) -> None:
        for name, documents in self.all_documents().items():
            found = manifests.pods(documents)
            self.assertEqual(sorted(pod.program for pod in found),
                             ["server", "worker"], name)
            for pod in found:
                if name == "base":  # Its overlays name the versions.
                    pod.container["image"] += ":0.1.0"
                with self.subTest(source=name, pod=pod.program):
                    check(pod)

    def test_every_field_is_one_of_kubernetes(self):
        for name, documents in self.all_documents().items():
            for document in documents:
                with self.subTest(source=name):
                    self.assertEqual(kubernetes_schema.mismatches(document), [])

    def test_pods_are_restricted_limited_and_versioned(self):
        self.check_pods(lambda pod: self.assertEqual(unsafe(pod), []))

    def test_pods_are_probed_on_the_operations_port(self):
        self.check_pods(lambda pod: self.assertEqual(unprobed(pod), []))

    def test_variables_are_flags_of_the_program(self):
        self.check_pods(lambda pod: self.assertEqual(
            {name for name in pod.environment if name.startswith("COHORT_")} -
            manifests.variables_of(pod.program), set()))

    def test_devices_are_named_as_the_program_wants(self):
        self.check_pods(lambda pod: self.assertRegex(
            pod.environment.get("COHORT_DEVICE", "cpu"), r"^(cpu|cuda:\d+)$"))

    def test_a_worker_that_is_moved_away_is_not_done(self):
        self.check_pods(lambda pod: self.assertTrue(
            pod.program == "server" or
            pod.environment["COHORT_STOPPED_EXIT_CODE"] == "143"))

    def test_as_many_workers_start_as_the_server_waits_for(self):
        for name, documents in self.all_documents().items():
            server, worker = sorted(manifests.pods(documents),
                                    key=lambda pod: pod.program)
            if name in ("tfjob.yaml", "base"):
                continue  # TF_CONFIG counts them; the base has a file for it.
            spec = worker.owner["spec"]
            self.assertEqual(
                (spec["completions"], spec["parallelism"]),
                (int(server.environment["COHORT_WORKERS"]),) * 2, name)

    def test_ranks_are_completion_indices(self):
        for name, documents in self.all_documents().items():
            for pod in manifests.pods(documents):
                if pod.program != "worker" or name == "tfjob.yaml":
                    continue
                self.assertEqual(pod.owner["spec"]["completionMode"], "Indexed")
                rank, = (entry for entry in pod.container["env"]
                         if entry["name"] == "COHORT_RANK")
                self.assertEqual(
                    rank["valueFrom"]["fieldRef"]["fieldPath"], INDEX)

    def test_tf_config_is_not_overruled(self):
        for pod in manifests.pods(
                manifests.load(KUBERNETES / "examples/tfjob.yaml")):
            self.assertEqual(pod.container["name"], "tensorflow")
            self.assertEqual(pod.port("tfjob-port"), 2222)
            for flag in ("LISTEN", "WORKERS", "SERVER", "RANK"):
                self.assertNotIn(f"COHORT_{flag}", pod.environment)

    def test_base_counts_its_workers_alike(self):
        worker, = (document for document in
                   manifests.load(KUBERNETES / "base/worker.yaml"))
        text = (KUBERNETES / "base/server.env").read_text(encoding="utf-8")
        self.assertIn(f"COHORT_WORKERS={worker['spec']['completions']}\n", text)


@unittest.skipIf(manifests.yaml is None, manifests.NO_YAML)
class FaultsTest(unittest.TestCase):
    """Shows that the checks above can fail."""

    def pod(self) -> Pod:
        return copy.deepcopy(manifests.pods(
            manifests.load(KUBERNETES / "examples/jobset.yaml"))[0])

    def test_a_misspelt_field_and_a_wrong_type_are_found(self):
        service = {"apiVersion": "v1", "kind": "Service",
                   "metadata": {"name": "a"},
                   "spec": {"ports": [{"name": "x", "port": "80"}],
                            "clusterIp": "None"}}
        self.assertEqual(kubernetes_schema.mismatches(service), [
            "Service a.spec.ports[0].port: got '80', want int",
            "Service a.spec.clusterIp: no such field"])

    def test_each_privilege_is_found(self):
        pod = self.pod()
        del pod.spec["securityContext"]
        pod.container["securityContext"]["capabilities"] = {"add": ["ALL"]}
        pod.container["image"] = "example/cohort-server:latest"
        del pod.container["resources"]["limits"]
        self.assertEqual(unsafe(pod), [
            "runs as root", "no seccomp", "capabilities",
            "no user id of its own", "no memory limit",
            "image cohort-server:latest has no version"])

    def test_a_probe_elsewhere_is_found(self):
        pod = self.pod()
        pod.container["livenessProbe"]["httpGet"]["path"] = "/"
        pod.container["ports"][1]["containerPort"] = 7070
        self.assertEqual(unprobed(pod), [
            "livenessProbe: {'path': '/', 'port': 'ops'}",
            "the operations port is elsewhere"])


WHY_NOT = manifests.why_not_rendered()


@unittest.skipIf(WHY_NOT, f"overlays not rendered: {WHY_NOT}")
class RenderedTest(unittest.TestCase):

    def of_kind(self, overlay: str, kind: str) -> dict[str, dict]:
        return {document["metadata"]["name"]: document
                for document in manifests.render(overlay)
                if document["kind"] == kind}

    def test_everything_lies_in_the_overlays_namespace(self):
        for overlay in OVERLAYS:
            namespace, = self.of_kind(overlay, "Namespace")
            self.assertEqual(
                self.of_kind(overlay, "Namespace")[namespace]["metadata"][
                    "labels"]["pod-security.kubernetes.io/enforce"],
                "restricted")
            for document in manifests.render(overlay):
                if document["kind"] != "Namespace":
                    self.assertEqual(document["metadata"]["namespace"],
                                     namespace)

    def test_names_lead_to_pods(self):
        for overlay in OVERLAYS:
            name = SERVER_NAMES.get(overlay, "cohort-server")
            server = self.of_kind(overlay, "StatefulSet")[name]
            service = self.of_kind(overlay, "Service")[name]
            labels = server["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(server["spec"]["serviceName"], name)
            worker, = (pod for pod in manifests.pods(manifests.render(overlay))
                       if pod.program == "worker")
            self.assertEqual(worker.environment["COHORT_SERVER"],
                             f"{name}:7070")
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])
            budget = self.of_kind(overlay, "PodDisruptionBudget")
            for selector in (
                    service["spec"]["selector"],
                    server["spec"]["selector"]["matchLabels"],
                    budget[name]["spec"]["selector"]["matchLabels"]):
                self.assertLessEqual(selector.items(), labels.items())

    def test_nothing_is_open_but_what_training_needs(self):
        for overlay in OVERLAYS:
            suffix = SERVER_NAMES.get(overlay, "cohort-server")[13:]
            policies = {
                name.removesuffix(suffix): policy for name, policy in
                self.of_kind(overlay, "NetworkPolicy").items()}
            deny = policies["cohort-default-deny"]["spec"]
            self.assertEqual(deny["policyTypes"], ["Ingress", "Egress"])
            # All pods of this run, and no others.
            for pod in manifests.pods(manifests.render(overlay)):
                template = pod.owner["spec"]["template"]["metadata"]["labels"]
                self.assertLessEqual(
                    deny["podSelector"]["matchLabels"].items(),
                    template.items())
            self.assertIn(INSTANCE, deny["podSelector"]["matchLabels"])
            rule, = policies["cohort-server"]["spec"]["ingress"]
            self.assertEqual(rule["ports"], [{"protocol": "TCP", "port": 7070}])
            peer, = rule["from"]
            self.assertEqual(peer["podSelector"]["matchLabels"][COMPONENT],
                             "worker")
            self.assertEqual(
                [port["port"] for rule in
                 policies["cohort-worker"]["spec"]["egress"]
                 for port in rule["ports"]], [7070, 53, 53])
            _, names = policies["cohort-worker"]["spec"]["egress"]
            self.assertEqual(names["to"], [{
                "namespaceSelector": {"matchLabels": {
                    "kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchExpressions": [
                    {"key": "k8s-app", "operator": "In",
                     "values": ["kube-dns"]}]}},
                # NodeLocal DNSCache.
                {"ipBlock": {"cidr": "169.254.20.10/32"}}])
            others = policies.keys() - {"cohort-default-deny", "cohort-server",
                                        "cohort-worker"}
            self.assertEqual(others, {"cohort-monitoring"}
                             if overlay == "monitoring" else set())

    def test_monitors_find_the_ports_under_the_rules_names(self):
        objects = manifests.render("monitoring")
        labels = {pod["metadata"]["name"]:
                  pod["spec"]["template"]["metadata"]["labels"]
                  for pod in objects if pod["kind"] in ("StatefulSet", "Job")}
        service = self.of_kind("monitoring", "Service")["cohort-server"]
        monitors = {document["kind"]: document["spec"]
                    for document in self.for_all_runs()
                    if document["kind"].endswith("Monitor")}
        for monitor in monitors.values():
            self.assertEqual(monitor["namespaceSelector"], {"any": True})
        self.assertLessEqual(
            monitors["ServiceMonitor"]["selector"]["matchLabels"].items(),
            service["metadata"]["labels"].items())
        self.assertIn("ops", [port["name"]
                              for port in service["spec"]["ports"]])
        self.assertLessEqual(
            monitors["PodMonitor"]["selector"]["matchLabels"].items(),
            labels["cohort-worker"].items())
        after_pod = {"sourceLabels": ["namespace", "pod"], "separator": "/",
                     "targetLabel": "instance"}
        for kind, endpoints, job in (
                ("PodMonitor", "podMetricsEndpoints", "cohort-worker"),
                ("ServiceMonitor", "endpoints", "cohort-server")):
            endpoint, = monitors[kind][endpoints]
            self.assertEqual(
                endpoint["relabelings"],
                [{"targetLabel": "job", "replacement": job}, after_pod])

    def test_two_runs_in_a_namespace_share_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            shutil.copytree(KUBERNETES, top / "kubernetes")
            overlays = top / "kubernetes/overlays"
            second = overlays / "second"
            shutil.copytree(overlays / "example", second)
            file = second / "kustomization.yaml"
            text = file.read_text(encoding="utf-8")
            text = text.replace("-first", "-second")
            text = text.replace("instance: first", "instance: second")
            text = text.replace("  - ../../namespace\n", "")
            file.write_text(text, encoding="utf-8")
            ours = manifests.render_folder(second)
        theirs = manifests.render("example")
        names = [{(of["kind"], of["metadata"]["name"]) for of in objects}
                 for objects in (ours, theirs)]
        self.assertEqual(names[0] & names[1], set())
        self.assertEqual({of["metadata"]["namespace"] for of in ours},
                         {"cohort-example"})
        # No selector of one run matches a pod of the other.
        pods = [pod.owner["spec"]["template"]["metadata"]["labels"]
                for pod in manifests.pods(theirs)]
        found = list(selectors(ours))
        self.assertGreaterEqual(len(found), 8)
        for selector in found:
            for labels in pods:
                self.assertFalse(selector.items() <= labels.items(), selector)

    def test_cpu_limit_is_that_of_the_sizing_rule(self):
        for overlay in OVERLAYS:
            server, = (pod for pod in manifests.pods(manifests.render(overlay))
                       if pod.program == "server")
            threads = int(server.environment["COHORT_FOLD_THREADS"])
            resources = server.container["resources"]
            self.assertEqual(resources["limits"]["cpu"], str(threads + 1))
            self.assertEqual(resources["limits"], resources["requests"])

    def test_finished_jobs_are_removed_after_a_day(self):
        for overlay in OVERLAYS:
            job, = self.of_kind(overlay, "Job").values()
            self.assertEqual(job["spec"]["ttlSecondsAfterFinished"], 86400)

    def test_rules_are_those_of_deploy_prometheus(self):
        rule, = (document for document in self.for_all_runs()
                 if document["kind"] == "PrometheusRule")
        self.assertEqual(
            rule["spec"]["groups"],
            [group for name in ("recording.yml", "alerts.yml")
             for document in manifests.load(DEPLOY / "prometheus/rules" / name)
             for group in document["groups"]],
            "run deploy/kubernetes/monitoring/update-rules")

    def test_dashboards_are_all_there(self):
        given = {file for document in self.for_all_runs()
                 if document["kind"] == "ConfigMap"
                 for file in document["data"] if file.endswith(".json")}
        self.assertEqual(given, {path.name for path in
                                 (DEPLOY / "grafana/dashboards").glob("*")})

    def for_all_runs(self) -> list[dict]:
        documents = manifests.render_folder(KUBERNETES / "monitoring")
        for document in documents:
            self.assertEqual(kubernetes_schema.mismatches(document), [])
        return documents

    def test_a_second_run_brings_no_second_copy_of_rules_and_dashboards(self):
        for overlay in OVERLAYS:
            for document in manifests.render(overlay):
                with self.subTest(overlay=overlay,
                                  name=document["metadata"]["name"]):
                    self.assertNotEqual(document["kind"], "PrometheusRule")
                    self.assertNotIn(
                        "grafana_dashboard",
                        document["metadata"].get("labels", {}))


if __name__ == "__main__":
    unittest.main()
