#!/usr/bin/env python3
"""deploy/kubernetes: the objects for a cluster, rendered and parsed."""

import copy
import re
import textwrap
import unittest
from collections.abc import Callable, Iterator

import kubernetes_schema
import manifests
from manifests import DEPLOY, KUBERNETES, OVERLAYS, Pod

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
COMPONENT = "app.kubernetes.io/component"
RUN = "app.kubernetes.io/instance"
# The nameSuffix of each overlay.
SUFFIXES = {"cpu": "", "example": "-first", "gpu": "", "monitoring": "",
            "python": ""}


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
        found.append("no separate user id")
    if spec.get("terminationGracePeriodSeconds", 0) < 30:
        found.append("too little grace")
    resources = container.get("resources", {})
    if "memory" not in resources.get("limits", {}):
        found.append("no memory limit")
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys():
        found.append("no requests")
    image = container["image"].rpartition("/")[2]
    if not re.search(r":\d|@sha256:[0-9a-f]{64}$", image):
        found.append(f"image {image} has no version")
    return found


def unprobed(pod: Pod) -> list[str]:
    """Returns the probes that do not use the operations port."""
    wanted = {"startupProbe": "/livez", "livenessProbe": "/livez"}
    if pod.owner.get("kind") == "StatefulSet":
        wanted["readinessProbe"] = "/readyz"
    scheme = ({"scheme": "HTTPS"} if "COHORT_TLS_CERT" in pod.environment
              else {})
    found = []
    for probe, path in wanted.items():
        got = pod.container.get(probe, {}).get("httpGet")
        if got != {"path": path, "port": "ops", **scheme}:
            found.append(f"{probe}: {got}")
    port = 7072 if pod.program == "worker" else 7071
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
        self.assertEqual(set(sources), {"training_runtime.yaml",
                                        "trainjob.yaml"})
        # A TrainJob has the pods of its runtime.
        sources["training_runtime.yaml"] += sources.pop("trainjob.yaml")
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
            if name == "base":
                continue  # It has a file for it.
            spec = worker.owner["spec"]
            self.assertEqual(
                (spec["completions"], spec["parallelism"]),
                (int(server.environment["COHORT_WORKERS"]),) * 2, name)

    def test_ranks_are_completion_indices(self):
        for documents in self.all_documents().values():
            for pod in manifests.pods(documents):
                if pod.program != "worker":
                    continue
                self.assertEqual(pod.owner["spec"]["completionMode"], "Indexed")
                rank, = (entry for entry in pod.container["env"]
                         if entry["name"] == "COHORT_RANK")
                self.assertEqual(
                    rank["valueFrom"]["fieldRef"]["fieldPath"], INDEX)

    def test_the_cpu_request_fits_the_sizing_rule(self):
        """deploy/OPERATIONS.md: --fold_threads, and one for the streams."""
        def check(pod: Pod) -> None:
            if pod.program == "server":
                threads = int(pod.environment.get(
                    "COHORT_FOLD_THREADS", manifests.default_of(
                        "server", "fold_threads")))
                resources = pod.container["resources"]
                self.assertEqual(resources["requests"]["cpu"],
                                 str(threads + 1))
                self.assertEqual(resources["limits"].get("cpu", "none"),
                                 str(threads + 1)
                                 if pod.owner.get("kind") == "StatefulSet"
                                 else "none")
        self.check_pods(check)

    def test_what_has_ended_is_deleted(self):
        for name, documents in self.all_documents().items():
            for document in documents:
                spec = document.get("spec", {})
                with self.subTest(source=name, kind=document["kind"]):
                    if document["kind"] == "Job":
                        self.assertEqual(spec["ttlSecondsAfterFinished"], 86400)

    def test_a_train_job_fits_its_runtime(self):
        """Names that Trainer compares when it makes the JobSet."""
        runtime, = manifests.load(KUBERNETES / "examples/training_runtime.yaml")
        run, = manifests.load(KUBERNETES / "examples/trainjob.yaml")
        self.assertEqual(run["spec"]["runtimeRef"]["name"],
                         runtime["metadata"]["name"])
        jobs = {job["name"]: job["template"] for job in
                runtime["spec"]["template"]["spec"]["replicatedJobs"]}
        self.assertEqual(jobs["node"]["metadata"]["labels"], {
            "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
        node, = jobs["node"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual(node["name"], "node")
        self.assertEqual(runtime["spec"]["mlPolicy"]["numNodes"],
                         jobs["node"]["spec"]["completions"])
        server, = jobs["server"]["spec"]["template"]["spec"]["containers"]
        claim, = runtime["spec"]["template"]["spec"]["volumeClaimPolicies"]
        self.assertEqual([mount["name"] for mount in server["volumeMounts"]],
                         [claim["templates"][0]["metadata"]["name"]])
        patch, = run["spec"]["runtimePatches"]
        job, = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        container, = job["template"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual((job["name"], container["name"]), ("server", "server"))
        values = {entry["name"]: entry["value"] for entry in container["env"]}
        self.assertEqual(values["COHORT_WORKERS"],
                         str(run["spec"]["trainer"]["numNodes"]))
        for program, given in (("server", container["env"]),
                               ("worker", run["spec"]["trainer"]["env"])):
            self.assertEqual({entry["name"] for entry in given} -
                             manifests.variables_of(program), set())

    def test_servers_of_examples_are_on_steady_nodes(self):
        component, = manifests.load(
            KUBERNETES / "components/steady_server/kustomization.yaml")
        patch, = component["patches"]
        wanted = manifests.yaml.safe_load(patch["patch"])[0]["value"]
        for pod in manifests.pods(manifests.load(
                KUBERNETES / "examples/training_runtime.yaml")):
            self.assertEqual(pod.spec.get("affinity"), wanted
                             if pod.program == "server" else None)

    def test_base_leaves_to_a_script_what_it_states(self):
        stated = manifests.stated_by_scripts()
        self.assertIn("COHORT_LEARNING_RATE", stated)
        self.assertIn("COHORT_SCHEDULE", stated)
        text = (KUBERNETES / "base/server.env").read_text(encoding="utf-8")
        given = set(re.findall(r"^(COHORT_\w+)=", text, re.M))
        self.assertEqual(given & stated, set())

    def test_base_counts_its_workers_alike(self):
        worker, = manifests.load(KUBERNETES / "base/worker.yaml")
        text = (KUBERNETES / "base/server.env").read_text(encoding="utf-8")
        self.assertIn(f"COHORT_WORKERS={worker['spec']['completions']}\n", text)


@unittest.skipIf(manifests.yaml is None, manifests.NO_YAML)
class FaultsTest(unittest.TestCase):
    """Shows that the checks above can fail."""

    def pod(self) -> Pod:
        return copy.deepcopy(manifests.pods(
            manifests.load(KUBERNETES / "examples/training_runtime.yaml"))[0])

    def test_a_misspelt_field_and_a_wrong_type_are_found(self):
        service = {"apiVersion": "v1", "kind": "Service",
                   "metadata": {"name": "a"},
                   "spec": {"ports": [{"name": "x", "port": "80"}],
                            "clusterIp": "None"}}
        self.assertEqual(kubernetes_schema.mismatches(service), [
            "Service a.spec.ports[0].port: got '80', want int",
            "Service a.spec.clusterIp: no such field"])
        runtime, = manifests.load(KUBERNETES / "examples/training_runtime.yaml")
        policy = runtime["spec"]["template"]["spec"]["failurePolicy"]
        policy["rules"][0]["jobs"] = []
        del policy["rules"][1]["action"]
        place = ("ClusterTrainingRuntime cohort.spec.template.spec."
                 "failurePolicy.rules")
        self.assertEqual(kubernetes_schema.mismatches(runtime), [
            f"{place}[0].jobs: no such field", f"{place}[1].action: missing"])
        self.assertEqual(
            kubernetes_schema.mismatches({"apiVersion": "kubeflow.org/v1",
                                          "kind": "TFJob"}),
            ["TFJob None: no schema of kubeflow.org/v1"])

    def test_each_privilege_is_found(self):
        pod = self.pod()
        del pod.spec["securityContext"]
        pod.container["securityContext"]["capabilities"] = {"add": ["ALL"]}
        pod.container["image"] = "example/cohort-server:latest"
        del pod.container["resources"]["limits"]
        self.assertEqual(unsafe(pod), [
            "runs as root", "no seccomp", "capabilities",
            "no separate user id", "no memory limit",
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
        """Returns objects by their names without the overlay's suffix."""
        return {name.removesuffix(SUFFIXES[overlay]): document for name, document
                in manifests.of_kind(manifests.render(overlay), kind).items()}

    def test_everything_lies_in_the_overlays_namespace(self):
        for overlay in OVERLAYS:
            documents = manifests.render(overlay)
            self.assertEqual(len({document["metadata"].get("namespace")
                                  for document in documents} - {None}), 1)
            # Deleting a run must not delete the namespace.
            self.assertNotIn("Namespace",
                             {document["kind"] for document in documents})

    def test_names_lead_to_pods(self):
        for overlay in OVERLAYS:
            server = self.of_kind(overlay, "StatefulSet")["cohort-server"]
            service = self.of_kind(overlay, "Service")["cohort-server"]
            labels = server["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(server["spec"]["serviceName"],
                             service["metadata"]["name"])
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])
            budget = self.of_kind(overlay, "PodDisruptionBudget")
            for selector in (
                    service["spec"]["selector"],
                    server["spec"]["selector"]["matchLabels"],
                    budget["cohort-server"]["spec"]["selector"]["matchLabels"]):
                self.assertLessEqual(selector.items(), labels.items())

    def test_a_script_has_what_torch_needs(self):
        pods = manifests.pods_by_program(manifests.render("python"))
        worker = pods["worker"]
        mounts = {mount["name"]: mount["mountPath"]
                  for mount in worker.container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in worker.spec["volumes"]}
        self.assertEqual(mounts.keys(), volumes.keys())
        self.assertEqual(mounts["shm"], "/dev/shm")
        self.assertEqual(volumes["shm"]["emptyDir"]["medium"], "Memory")
        self.assertEqual(mounts["tmp"], "/tmp")
        self.assertEqual(volumes["tmp"]["emptyDir"], {"sizeLimit": "4Gi"})
        self.assertEqual(worker.container["resources"]["limits"]["memory"], "4Gi")
        self.assertEqual(worker.environment["OMP_NUM_THREADS"],
                         worker.environment["COHORT_THREADS"])
        script = self.of_kind("python", "ConfigMap")[
            volumes["script"]["configMap"]["name"]]
        self.assertEqual([f"{mounts['script']}/{name}"
                          for name in script["data"]],
                         worker.container["args"])
        self.assertEqual(manifests.stated_by_scripts() &
                         pods["server"].environment.keys(), set())

    def test_nothing_is_open_but_what_training_needs(self):
        for overlay in OVERLAYS:
            policies = self.of_kind(overlay, "NetworkPolicy")
            deny = policies["cohort-default-deny"]["spec"]
            self.assertEqual(deny["policyTypes"], ["Ingress", "Egress"])
            self.assertEqual(deny.keys(), {"podSelector", "policyTypes"})
            for pod in manifests.pods(manifests.render(overlay)):
                labels = pod.owner["spec"]["template"]["metadata"]["labels"]
                self.assertLessEqual(
                    deny["podSelector"]["matchLabels"].items(), labels.items())
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

    def test_monitors_find_every_run_under_the_rules_names(self):
        monitors = {document["metadata"]["name"]: document["spec"]
                    for document in self.for_all_runs()
                    if document["kind"].endswith("Monitor")}
        for label, component in (("service", "server"), ("pod", "shard"),
                                 ("pod", "worker")):
            monitor = monitors[f"cohort-{component}"]
            self.assertEqual(monitor["namespaceSelector"], {"any": True})
            endpoint, = monitor.get("endpoints",
                                    monitor.get("podMetricsEndpoints"))
            self.assertEqual(endpoint["port"], "ops")
            self.assertEqual(endpoint["relabelings"], [
                {"targetLabel": "job", "replacement": f"cohort-{component}"},
                {"sourceLabels": ["namespace", label], "separator": "/",
                 "targetLabel": "instance"},
                # A restarted server continues its series.
                *([{"action": "labeldrop", "regex": "pod"}]
                  if component == "server" else [])])
        for overlay in OVERLAYS:
            service = self.of_kind(overlay, "Service")["cohort-server"]
            self.assertIn("ops", [port["name"]
                                  for port in service["spec"]["ports"]])
            job = self.of_kind(overlay, "Job")["cohort-worker"]
            for name, labels in (
                    ("cohort-server", service["metadata"]["labels"]),
                    ("cohort-worker",
                     job["spec"]["template"]["metadata"]["labels"])):
                selector = monitors[name]["selector"]["matchLabels"]
                self.assertLessEqual(selector.items(), labels.items())

    def test_one_setting_moves_the_links_of_all_alerts(self):
        address = "https://wiki.example.com/cohort/RUNBOOK.md"
        documents = manifests.render_own("own", {
            "resources": ["../../monitoring"],
        }, edit=("monitoring/runbook.yaml",
                 "{{ $externalURL }}/user/RUNBOOK.md", address))
        rule, = manifests.of_kind(documents, "PrometheusRule").values()
        links = {alert["alert"]: alert["annotations"]["runbook_url"]
                 for group in rule["spec"]["groups"]
                 for alert in group["rules"] if "alert" in alert}
        self.assertEqual(links, {name: f"{address}#{name.lower()}"
                                 for name in links})
        self.assertGreater(len(links), 15)
        self.assertNotIn("cohort-runbook", {document["metadata"]["name"]
                                            for document in documents})

    def test_rules_are_those_of_deploy_prometheus(self):
        rule, = manifests.of_kind(self.for_all_runs(), "PrometheusRule").values()
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
                    self.assertNotIn(document["kind"], (
                        "PrometheusRule", "ServiceMonitor", "PodMonitor"))
                    self.assertNotIn(
                        "grafana_dashboard",
                        document["metadata"].get("labels", {}))


# What an overlay with a name says for components/tls: overlays/example.
RUN_IN_CERTIFICATES = {
    "source": {"kind": "Service", "name": "cohort-server",
               "fieldPath": f"metadata.labels.[{RUN}]"},
    "targets": [{"select": {"kind": "Certificate"},
                 "fieldPaths": ["spec.uris.0"],
                 "options": {"delimiter": "/", "index": 4}}]}


def own_run(name: str, components: list[str] = (), **fields: object
            ) -> list[dict]:
    """Renders an overlay over `cpu` for a run of that name."""
    return manifests.render_own(f"own-{name}", {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization", "namespace": "team",
        "resources": ["../cpu"], "nameSuffix": f"-{name}",
        "labels": [{"pairs": {RUN: name}, "includeSelectors": True,
                    "includeTemplates": True}],
        "components": [f"../../components/{component}"
                       for component in components],
        "replacements": [RUN_IN_CERTIFICATES], **fields})


def selectors(value: object, where: str = "") -> Iterator[tuple[str, dict]]:
    """Yields (where, labels) of everything that selects pods of a run."""
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{where}.{key}"
            if key == "matchLabels" and "namespaceSelector" not in where or (
                    path == ".spec.selector" and "matchLabels" not in inner):
                yield path, inner
            else:
                yield from selectors(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from selectors(inner, where)


# REFERENCE.md: `shards` comes first.
ALL_COMPONENTS = sorted((path.name for path in
                         (KUBERNETES / "components").iterdir()),
                        key=lambda name: (name != "shards", name))


@unittest.skipIf(WHY_NOT, f"overlays not rendered: {WHY_NOT}")
class RunsInOneNamespaceTest(unittest.TestCase):

    def check_apart(self, components: list[str]) -> None:
        runs = {name: own_run(name, components) for name in ("a", "b")}
        runs["cohort"] = manifests.render_own("own", {
            "namespace": "team", "resources": ["../cpu"],
            "components": [f"../../components/{component}"
                           for component in components]})
        names = [(document["kind"], document["metadata"]["name"])
                 for documents in runs.values() for document in documents]
        self.assertEqual(len(set(names)), len(names))
        for run, documents in runs.items():
            for document in documents:
                self.assertEqual(document["metadata"]["labels"][RUN], run)
                for where, labels in selectors(document):
                    if "topologySpread" in where:
                        continue  # By matchLabelKeys.
                    with self.subTest(run=run, kind=document["kind"],
                                      where=where):
                        self.assertEqual(labels[RUN], run)
                self.assertEqual(kubernetes_schema.mismatches(document), [])

    def test_two_runs_share_no_name_and_no_selector(self):
        self.check_apart([])

    def test_neither_do_they_with_every_component(self):
        self.check_apart(ALL_COMPONENTS)

    def test_each_workers_server_is_that_of_its_run(self):
        for components in ([], ALL_COMPONENTS):
            documents = own_run("a", components)
            service, *_ = manifests.of_kind(documents, "Service")
            worker = manifests.pods_by_program(documents)["worker"]
            self.assertEqual(worker.environment["COHORT_SERVER"], f"{service}:7070")

    def test_configuration_is_that_of_the_run(self):
        for pod in manifests.pods(own_run("a")):
            source, = pod.container["envFrom"]
            self.assertEqual(source["configMapRef"]["name"],
                             f"cohort-{pod.program}-a")

    def test_claims_can_be_deleted_by_the_name_of_the_run(self):
        server, = manifests.of_kind(own_run("a"), "StatefulSet").values()
        claim, = server["spec"]["volumeClaimTemplates"]
        self.assertEqual(claim["metadata"]["labels"][RUN], "a")

    def test_the_run_is_named_after_the_label(self):
        server = manifests.pods_by_program(own_run("a"))["server"]
        entry, = (entry for entry in server.container["env"]
                  if entry["name"] == "COHORT_RUN_NAME")
        self.assertEqual(entry["valueFrom"]["fieldRef"]["fieldPath"],
                         f"metadata.labels['{RUN}']")

    def test_a_missing_label_is_found(self):
        document = {"spec": {"selector": {"app": "x"}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {RUN: "b"}}}]}]}}
        self.assertEqual(list(selectors(document)), [
            (".spec.selector", {"app": "x"}),
            (".spec.ingress.from.podSelector.matchLabels", {RUN: "b"})])


@unittest.skipIf(WHY_NOT, f"overlays not rendered: {WHY_NOT}")
class ComponentsTest(unittest.TestCase):

    def pods(self, *components: str, **fields: object) -> dict[str, Pod]:
        return manifests.pods_by_program(own_run("a", list(components), **fields))

    def test_pods_stay_safe_with_every_component(self):
        for pod in self.pods(*ALL_COMPONENTS).values():
            self.assertEqual(unsafe(pod) + unprobed(pod), [])

    def test_images_are_pulled_with_the_secret(self):
        for components in (["registry_secret"], ALL_COMPONENTS):
            for pod in self.pods(*components).values():
                self.assertEqual(pod.spec["imagePullSecrets"],
                                 [{"name": "cohort-registry"}])

    def test_the_server_is_more_important_than_its_workers(self):
        for components in (["priority"], ALL_COMPONENTS):
            for program, pod in self.pods(*components).items():
                self.assertEqual(pod.spec["priorityClassName"],
                                 "cohort-worker" if program == "worker"
                                 else "cohort-server")

    def test_only_the_server_avoids_nodes_that_are_taken_away(self):
        for components in (["steady_server"], ALL_COMPONENTS):
            for program, pod in self.pods(*components).items():
                self.assertEqual("affinity" in pod.spec, program != "worker")

    def test_workers_of_the_run_are_spread_over_nodes(self):
        spread, = self.pods("spread")["worker"].spec[
            "topologySpreadConstraints"]
        self.assertEqual(spread["topologyKey"], "kubernetes.io/hostname")
        self.assertEqual(spread["matchLabelKeys"], [RUN])
        self.assertEqual(spread["labelSelector"]["matchLabels"],
                         {COMPONENT: "worker"})

    def test_an_elastic_cohort_has_pods_for_its_largest_size(self):
        for components in (["elastic"], ["elastic", "server_job"]):
            pods = self.pods(*components, configMapGenerator=[
                {"name": "cohort-server", "behavior": "merge",
                 "literals": ["WORKERS_MIN=3"]}])
            self.assertEqual(pods["server"].environment["WORKERS_MIN"], "3")
            env = pods["server"].container["env"]
            at = [entry["name"] for entry in env].index("COHORT_WORKERS")
            self.assertEqual(env[at]["value"], "$(WORKERS_MIN):$(WORKERS_MAX)")
            # Kubernetes expands only what stands before.
            keys = {entry["name"]: entry["valueFrom"]["configMapKeyRef"]
                    for entry in env[:at] if entry["name"].startswith("WORKERS_")}
            self.assertEqual(keys, {
                "WORKERS_MIN": {"name": "cohort-server-a",
                                "key": "WORKERS_MIN"},
                "WORKERS_MAX": {"name": "cohort-server-a",
                                "key": "COHORT_WORKERS"}})
            # `wait` is refused in an elastic cohort.
            self.assertEqual(
                pods["server"].environment["COHORT_ON_WORKER_LOSS"], "continue")
            spec = pods["worker"].owner["spec"]
            self.assertEqual((spec["completions"], spec["parallelism"]), (4, 4))

    def test_an_image_may_be_pinned_by_its_digest(self):
        pods = self.pods(images=[
            {"name": f"cohort-{program}",
             "newName": f"registry.example.com/cohort-{program}",
             "digest": "sha256:" + "0" * 64}
            for program in ("server", "worker")])
        for program, pod in pods.items():
            self.assertEqual(unsafe(pod), [])
            self.assertRegex(pod.container["image"], "^registry.example.com/"
                             f"cohort-{program}(:0.1.0)?@sha256:0+$")

    def test_a_server_that_is_a_job_ends_with_its_run(self):
        server = self.pods("server_job")["server"]
        self.assertEqual(server.owner["kind"], "Job")
        self.assertEqual(server.environment["COHORT_EXIT_WHEN_DONE"], "true")
        self.assertEqual(server.environment["COHORT_STOPPED_EXIT_CODE"], "143")
        self.assertEqual(server.environment["COHORT_RESUME"], "true")
        self.assertEqual(server.spec["restartPolicy"], "Never")
        self.assertEqual(server.owner["spec"]["ttlSecondsAfterFinished"], 86400)

    def test_its_results_stay_in_a_claim_of_the_run(self):
        documents = own_run("a", ["server_job"])
        claim, = manifests.of_kind(documents, "PersistentVolumeClaim")
        server = manifests.pods_by_program(documents)["server"]
        self.assertIn({"name": "state",
                       "persistentVolumeClaim": {"claimName": claim}},
                      server.spec["volumes"])
        self.assertNotIn("PodDisruptionBudget",
                         {document["kind"] for document in documents})

    def test_otherwise_the_pod_is_that_of_the_stateful_set(self):
        job, stateful = (self.pods(*components)["server"]
                         for components in (["server_job"], []))
        for pod in (job, stateful):
            for name in ("COHORT_EXIT_WHEN_DONE", "COHORT_STOPPED_EXIT_CODE"):
                pod.environment.pop(name, None)
            pod.container.pop("env")
            pod.spec["volumes"] = [volume for volume in pod.spec["volumes"]
                                   if volume["name"] != "state"]
            pod.spec.pop("restartPolicy", None)
        self.assertEqual((job.spec, job.environment),
                         (stateful.spec, stateful.environment))


def mounted(pod: Pod) -> dict[str, str]:
    """Returns the Secret of each folder that a pod mounts, by its path."""
    secrets = {volume["name"]: volume["secret"]["secretName"]
               for volume in pod.spec["volumes"] if "secret" in volume}
    return {mount["mountPath"]: secrets[mount["name"]]
            for mount in pod.container["volumeMounts"]
            if mount["name"] in secrets}


@unittest.skipIf(WHY_NOT, f"overlays not rendered: {WHY_NOT}")
class EncryptedTest(unittest.TestCase):
    """components/tls and components/tls_monitoring."""

    ROLES = {"server": "server/0", "worker": "worker/any",
             "operator": "operator", "viewer": "viewer"}

    def certificates(self, documents: list[dict]) -> dict[str, dict]:
        return {name: document["spec"] for name, document
                in manifests.of_kind(documents, "Certificate").items()}

    def test_certificates_are_of_the_run_whichever_way_it_is_named(self):
        tls = {"components": ["../../components/tls"], "namespace": "team"}
        inner = {"resources": ["../example"], **tls}
        for run, suffix, documents in (
                ("a", "-a", own_run("a", ["tls"])),
                ("cohort", "", manifests.render_own(
                    "own", {"resources": ["../cpu"], **tls})),
                # The name is in the overlay below; the suffix comes too early.
                ("first", "", manifests.render_own("own", inner))):
            with self.subTest(run=run):
                self.assertEqual(
                    {name: spec["uris"] for name, spec
                     in self.certificates(documents).items()},
                    {f"cohort-{role}-tls{suffix}":
                     [f"spiffe://cohort.local/cohort/{run}/{identity}"]
                     for role, identity in self.ROLES.items()})

    def test_certificates_serve_both_sides_and_get_new_keys(self):
        for name, spec in self.certificates(own_run("a", ["tls"])).items():
            self.assertEqual(spec["secretName"], name)
            self.assertEqual(spec["usages"], [
                "digital signature", "server auth", "client auth"])
            self.assertEqual(spec["privateKey"]["rotationPolicy"], "Always")
            life, before = (int(spec[field].removesuffix("h"))
                            for field in ("duration", "renewBefore"))
            # A renewal that works keeps CohortCertificateExpires silent.
            self.assertGreater(before, 7 * 24)
            self.assertGreater(life, 2 * before)

    def test_pods_mount_the_secrets_of_their_run(self):
        for components in (["tls"], ALL_COMPONENTS):
            documents = own_run("a", components)
            known = self.certificates(documents)
            for pod in manifests.pods(documents):
                role = "worker" if pod.program == "worker" else "server"
                want = {"/etc/cohort/tls": f"cohort-{role}-tls-a"}
                if pod.program == "server":
                    want["/etc/cohort/operator"] = "cohort-operator-tls-a"
                self.assertEqual(mounted(pod), want)
                self.assertLessEqual(set(want.values()), known.keys())
                self.assertEqual(pod.spec["securityContext"]["fsGroup"],
                                 pod.spec["securityContext"]["runAsUser"])
                for volume in pod.spec["volumes"]:
                    if "secret" in volume:
                        self.assertEqual(volume["secret"]["defaultMode"], 0o440)

    def test_each_program_presents_its_own_certificate(self):
        for pod in manifests.pods(own_run("a", ["tls"])):
            self.assertNotIn("COHORT_INSECURE", pod.environment)
            variables = {name: pod.environment[f"COHORT_TLS_{name.upper()}"]
                         for name in ("cert", "key", "ca")}
            # In the server's pod the variables are cohortctl's.
            folder = {"server": "operator", "worker": "tls"}[pod.program]
            self.assertEqual(variables, {
                "cert": f"/etc/cohort/{folder}/tls.crt",
                "key": f"/etc/cohort/{folder}/tls.key",
                "ca": f"/etc/cohort/{folder}/ca.crt"})
            self.assertEqual(pod.container.get("args", []), [
                "--tls_cert=/etc/cohort/tls/tls.crt",
                "--tls_key=/etc/cohort/tls/tls.key",
                "--tls_ca=/etc/cohort/tls/ca.crt",
            ] if pod.program == "server" else [])

    def test_without_cert_manager_the_names_of_the_secrets_stay(self):
        page = (KUBERNETES / "REFERENCE.md").read_text(encoding="utf-8")
        lines = re.search(r"(?:^    .*\n)+", page.partition(
            "**Without cert-manager**")[2], re.M).group()
        documents = own_run("a", ["tls"], **manifests.yaml.safe_load(
            textwrap.dedent(lines)))
        self.assertEqual(self.certificates(documents), {})
        for pod in manifests.pods(documents):
            self.assertIn(f"cohort-{pod.program}-tls-a", mounted(pod).values())

    def test_monitors_read_the_run_as_a_viewer(self):
        for document in own_run("a", ["tls", "tls_monitoring"]):
            if not document["kind"].endswith("Monitor"):
                continue
            spec = document["spec"]
            self.assertNotIn("namespaceSelector", spec)
            endpoint, = spec.get("endpoints", spec.get("podMetricsEndpoints"))
            self.assertEqual(endpoint["scheme"], "https")
            tls = endpoint["tlsConfig"]
            self.assertEqual(
                [tls["ca"]["secret"], tls["cert"]["secret"], tls["keySecret"]],
                [{"name": "cohort-viewer-tls-a", "key": key}
                 for key in ("ca.crt", "tls.crt", "tls.key")])
            self.assertEqual(tls["serverName"], "localhost")
            for role in ("server", "worker"):
                self.assertIn("localhost", self.certificates(own_run(
                    "a", ["tls"]))[f"cohort-{role}-tls-a"]["dnsNames"])
            self.assertEqual(endpoint["relabelings"],
                             self.plain_endpoint(document)["relabelings"])

    def plain_endpoint(self, document: dict) -> dict:
        """The endpoint of the monitor for all runs of the same component."""
        component = document["spec"]["selector"]["matchLabels"][COMPONENT]
        spec, = (other["spec"] for other in manifests.load(
            KUBERNETES / "monitoring/monitors.yaml")
            if other["spec"]["selector"]["matchLabels"][COMPONENT] == component)
        endpoint, = spec.get("endpoints", spec.get("podMetricsEndpoints"))
        return endpoint

    def test_monitors_for_all_runs_leave_encrypted_ones_out(self):
        mark = {"key": "cohort/encrypted", "operator": "DoesNotExist"}
        for document in manifests.load(KUBERNETES / "monitoring/monitors.yaml"):
            self.assertEqual(document["spec"]["selector"]["matchExpressions"],
                             [mark])
        for components, marked in (([], False), (["tls"], True)):
            for document in own_run("a", components):
                labels = document["metadata"]["labels"]
                if document["kind"] == "Job":
                    labels = document["spec"]["template"]["metadata"]["labels"]
                if document["kind"] in ("Service", "Job"):
                    self.assertEqual(mark["key"] in labels, marked)

    def test_the_authority_is_the_one_that_certificates_name(self):
        documents = manifests.load(KUBERNETES / "issuer.yaml")
        for document in documents:
            self.assertEqual(kubernetes_schema.mismatches(document), [])
        _, authority, issuer = documents
        self.assertTrue(authority["spec"]["isCA"])
        self.assertEqual(issuer["spec"]["ca"]["secretName"],
                         authority["spec"]["secretName"])
        for spec in self.certificates(own_run("a", ["tls"])).values():
            self.assertEqual(spec["issuerRef"]["name"],
                             issuer["metadata"]["name"])


class PageTest(unittest.TestCase):
    """What the pages of deploy/kubernetes say to type."""

    # Kinds that belong to the cluster, not to a namespace.
    OF_THE_CLUSTER = ("create namespace", "label namespace",
                      "create priorityclass", "get storageclass",
                      "apply -f deploy/kubernetes/examples/training_runtime")

    def setUp(self):
        self.page = "\n".join(
            (KUBERNETES / page).read_text(encoding="utf-8")
            for page in ("README.md", "REFERENCE.md"))

    def test_every_command_names_its_namespace(self):
        commands = re.findall(r"(?:^ {4,}|\| |`)kubectl (.*)", self.page, re.M)
        self.assertGreater(len(commands), 20)
        for command in commands:
            if not command.startswith(self.OF_THE_CLUSTER):
                self.assertRegex(command, "^-n [a-z-]+ ")

    @unittest.skipIf(WHY_NOT, f"overlays not rendered: {WHY_NOT}")
    def test_the_lines_that_name_a_run_name_it(self):
        section = self.page.partition("## Several runs")[2]
        lines = re.search(r"(?:^    .*\n)+", section, re.M).group()
        fields = manifests.yaml.safe_load(textwrap.dedent(lines))
        documents = manifests.render_own(
            "own", {"resources": ["../cpu"], **fields})
        for document in documents:
            self.assertTrue(document["metadata"]["name"].endswith("-first"))
            self.assertEqual(document["metadata"]["labels"][RUN], "first")

    def test_named_files_and_components_are_there(self):
        for path in re.findall(r"deploy/[\w./-]+\w", self.page):
            if not path.startswith("deploy/kubernetes/overlays/mine"):
                self.assertTrue((DEPLOY.parent / path).exists(), path)
        for component in ALL_COMPONENTS:
            self.assertIn(f"| `{component}` |", self.page)

    @unittest.skipIf(manifests.yaml is None, manifests.NO_YAML)
    def test_the_pod_for_files_is_restricted(self):
        document, = manifests.load(KUBERNETES / "files.yaml")
        self.assertEqual(kubernetes_schema.mismatches(document), [])
        spec = document["spec"]
        self.assertEqual(unsafe(Pod("worker", document, {
            **spec, "terminationGracePeriodSeconds": 30}, {})), [])
        server, = manifests.pods(manifests.load(KUBERNETES / "base/server.yaml"))
        for user in ("runAsUser", "fsGroup"):
            self.assertEqual(spec["securityContext"][user],
                             server.spec["securityContext"][user])


if __name__ == "__main__":
    unittest.main()
