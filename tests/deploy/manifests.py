"""The manifests of deploy/ as Python objects."""

import functools
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("cpu", "example", "gpu", "monitoring", "python")
NO_YAML = "no yaml module for Python (apt-get install python3-yaml)"

FLAG = re.compile(r"^COHORT_(?:FLAG|SETTING|TEXT_SETTING)\(\s*[\w:]+,\s*(\w+),", re.M)


def variables_of(program: str) -> set[str]:
    """Returns the variables that a program takes; see Pod.program."""
    if program == "shard":
        program = "server"
    table = ROOT / f"common/flags/{program}_flags.inc"
    text = table.read_text(encoding="utf-8")
    return {f"COHORT_{name.upper()}" for name in FLAG.findall(text)}


def stated_by_scripts() -> set[str]:
    """Returns the variables of the server that have precedence over a script's
    optimizer and schedule."""
    text = (ROOT / "common/flags/server_flags.inc").read_text(encoding="utf-8")
    return {f"COHORT_{name.upper()}" for subject in re.findall(
        r"COHORT_FLAG_SUBJECT\((?:optimizer|schedule),.*?(?=COHORT_FLAG_SUBJECT)",
        text, re.S) for name in FLAG.findall(subject)}


def default_of(program: str, flag: str) -> str:
    """Returns the default of a flag of a program."""
    table = ROOT / f"common/flags/{program}_flags.inc"
    found = re.search(rf"^    [\w:]+, {flag}, ([^,]+),",
                      table.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1)


def load(path: pathlib.Path) -> list[dict]:
    """Returns the documents of a YAML file."""
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def why_not_rendered() -> str:
    """The reason why overlays cannot be rendered here; empty if they can."""
    if yaml is None:
        return NO_YAML
    if shutil.which("kubectl") is None:
        return "no kubectl"
    result = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / "base"], capture_output=True,
        text=True, check=False)
    # An old kubectl knows fewer kustomize features; any other error is ours.
    if result.returncode != 0 and "unknown" in result.stderr:
        return f"this kubectl cannot render: {result.stderr.splitlines()[0]}"
    return ""


@functools.lru_cache
def _rendered(folder: pathlib.Path) -> str:
    result = subprocess.run(
        ["kubectl", "kustomize", folder],
        capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}: {result.stderr}")
    return result.stdout


def render_folder(folder: pathlib.Path) -> list[dict]:
    """Returns the objects of a kustomization."""
    return [document for document in yaml.safe_load_all(_rendered(folder))
            if document]


def render(overlay: str) -> list[dict]:
    """Returns the objects of an overlay."""
    return render_folder(KUBERNETES / "overlays" / overlay)


def render_own(name: str, kustomization: dict,
               edit: tuple[str, str, str] | None = None) -> list[dict]:
    """Returns the objects of an overlay that a user would add.

    Paths in `kustomization` are relative to deploy/kubernetes/overlays/NAME,
    in a copy of the tree. `edit` is a file there, a text in it and what the
    user writes instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "kubernetes"
        shutil.copytree(KUBERNETES, copy)
        shutil.copytree(DEPLOY / "grafana", copy.parent / "grafana")
        if edit is not None:
            file, before, after = edit
            text = (copy / file).read_text(encoding="utf-8")
            assert text.count(before) == 1, (file, before)
            (copy / file).write_text(text.replace(before, after),
                                     encoding="utf-8")
        own = copy / "overlays" / name
        own.mkdir()
        with open(own / "kustomization.yaml", "w", encoding="utf-8") as file:
            yaml.safe_dump(kustomization, file)
        return [document for document in yaml.safe_load_all(
            _rendered.__wrapped__(own)) if document]


class Pod(NamedTuple):
    """One pod template and its context."""
    # "server", "worker" or, for a data shard of cohort-server, "shard".
    program: str
    # The Job, StatefulSet or similar object that the pod belongs to.
    owner: dict
    spec: dict
    # By name, as the kubelet sets it; None if the value is known in the cluster
    # only.
    environment: dict[str, str | None]

    @property
    def container(self) -> dict:
        """Its one container."""
        only, = self.spec["containers"]
        return only

    def port(self, name: str) -> int:
        """Number of a named port."""
        return next(port["containerPort"] for port in self.container["ports"]
                    if port["name"] == name)


def _templates(document: dict) -> Iterator[tuple[dict, dict]]:
    """Yields (owner, pod template)."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind in ("StatefulSet", "Job"):
        yield document, spec["template"]
    elif kind == "ClusterTrainingRuntime":
        for job in spec["template"]["spec"]["replicatedJobs"]:
            yield job["template"], job["template"]["spec"]["template"]


def pods(documents: list[dict]) -> list[Pod]:
    """Returns every pod template, with the ConfigMaps it reads."""
    maps = {document["metadata"]["name"]: document["data"]
            for document in documents if document["kind"] == "ConfigMap"}
    found = []
    for document in documents:
        for owner, template in _templates(document):
            spec = template["spec"]
            container, = spec["containers"]
            environment: dict[str, str | None] = {}
            for source in container.get("envFrom", ()):
                environment.update(maps.get(source["configMapRef"]["name"], {}))
            for entry in container.get("env", ()):
                value = entry.get("value")
                key = entry.get("valueFrom", {}).get("configMapKeyRef")
                if key:
                    value = maps[key["name"]][key["key"]]
                elif value:
                    # $(NAME) is a variable that comes earlier.
                    value = re.sub(r"\$\((\w+)\)", lambda match: environment.get(
                        match[1]) or match[0], value)
                environment[entry["name"]] = value
            program = "server" if "server" in container["image"] else "worker"
            if environment.get("COHORT_DATA_SHARD") == "true":
                program = "shard"
            found.append(Pod(program, owner, spec, environment))
    return found


def pods_by_program(documents: list[dict]) -> dict[str, Pod]:
    """Returns the same by what runs in them."""
    return {pod.program: pod for pod in pods(documents)}


def of_kind(documents: list[dict], kind: str) -> dict[str, dict]:
    """Returns the objects of a kind by their names."""
    return {document["metadata"]["name"]: document for document in documents
            if document["kind"] == kind}
