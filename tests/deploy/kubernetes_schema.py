"""Checks objects for Kubernetes against published schemas.

There is no API server where these tests run. The schemas of Kubernetes itself
are those of the client `kubernetes` from PyPI, those of Kubeflow
Trainer are in `kubeflow-trainer-api`; tests/deploy/requirements.txt has both.
For Prometheus Operator and cert-manager PyPI has none: a list of the fields in
use stands for them.
"""

import datetime
import functools
import importlib
import importlib.util
import pathlib
import re
import sys
import types
import typing
import unittest
from collections.abc import Iterator

# A schema in the list below is a type, a list of one schema, or fields by name;
# "*" stands for any name.
LABELS = {"*": str}
METADATA = {"name": str, "namespace": str, "labels": LABELS,
            "annotations": LABELS}
SELECTOR = {"matchLabels": LABELS,
            "matchExpressions": [{"key": str, "operator": str,
                                  "values": [str]}]}
SECRET_KEY = {"name": str, "key": str}
ENDPOINT = {"port": str, "interval": str, "scrapeTimeout": str,
            "scheme": str,
            "tlsConfig": {"ca": {"secret": SECRET_KEY},
                          "cert": {"secret": SECRET_KEY},
                          "keySecret": SECRET_KEY, "serverName": str},
            "relabelings": [{"sourceLabels": [str], "separator": str,
                             "targetLabel": str, "replacement": str,
                             "action": str, "regex": str}]}
SPECS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {
        "namespaceSelector": {"any": bool}, "selector": SELECTOR,
        "endpoints": [ENDPOINT]},
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "namespaceSelector": {"any": bool}, "selector": SELECTOR,
        "podMetricsEndpoints": [ENDPOINT]},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "groups": [{"name": str, "interval": str, "rules": [{
            "record": str, "alert": str, "expr": str, "for": str,
            "keep_firing_for": str, "labels": LABELS,
            "annotations": LABELS}]}]},
    ("cert-manager.io/v1", "Issuer"): {
        "selfSigned": {}, "ca": {"secretName": str}},
    ("cert-manager.io/v1", "Certificate"): {
        "secretName": str, "isCA": bool, "commonName": str,
        "issuerRef": {"name": str, "kind": str, "group": str},
        "uris": [str], "dnsNames": [str], "usages": [str],
        "duration": str, "renewBefore": str,
        "privateKey": {"algorithm": str, "size": int,
                       "rotationPolicy": str}},
}
# Groups of Kubeflow's package, and how its models begin.
KUBEFLOW = {"trainer.kubeflow.org/v1alpha1": "trainer_v1alpha1_"}


@functools.lru_cache
def _why_not() -> str:
    """The reason why objects cannot be checked here; empty if they can."""
    missing = [name for name in ("kubernetes", "kubeflow_trainer_api", "pydantic")
               if importlib.util.find_spec(name) is None]
    return (f"no {', '.join(missing)} for this Python (tests/python/make-env)"
            if missing else "")


def _snake(name: str) -> str:
    """v1_pod_spec for V1PodSpec."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _module(package: str, name: str) -> types.ModuleType:
    """A module of a package of models.

    The packages' own __init__ files import all models, and what a client needs
    beside them; none of that is loaded.
    """
    parts = package.split(".")
    if package not in sys.modules:
        folder = pathlib.Path(importlib.util.find_spec(parts[0]).origin).parent
        for end in range(1, len(parts) + 1):
            stand_in = types.ModuleType(".".join(parts[:end]))
            stand_in.__path__ = [str(folder.joinpath(*parts[1:end]))]
            sys.modules[stand_in.__name__] = stand_in
    return importlib.import_module(f"{package}.{name}")


def _model(api_version: str, kind: str) -> type | None:
    """The model of a kind; None without one."""
    if api_version in KUBEFLOW:
        package = "kubeflow_trainer_api.models"
        name = KUBEFLOW[api_version] + _snake(kind)
    else:
        package = "kubernetes.client.models"
        name = f"{api_version.rpartition('/')[2]}_{_snake(kind)}"
    try:
        module = _module(package, name)
    except ModuleNotFoundError:
        return None
    return next(value for word, value in vars(module).items()
                if _snake(word) == name)


def _expected(schema: object) -> str:
    return (schema.__name__ if isinstance(schema, type) else
            "fields" if isinstance(schema, dict) else "a list")


def _fields(schema: type) -> dict[str, typing.Any]:
    """The fields of a model by their names in JSON."""
    return {info.serialization_alias or info.alias or name: info
            for name, info in schema.model_fields.items()}


def _alternatives(schema: object) -> list[object]:
    """A schema without the parts that say nothing about JSON."""
    origin = typing.get_origin(schema)
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(schema)[0])
    if origin in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(schema)
                for one in _alternatives(part) if one is not type(None)]
    return [schema]


def _model_mismatches(value: object, schema: type, where: str
                      ) -> Iterator[str]:
    fields = _fields(schema)
    if "actual_instance" in fields:  # A value of one of several types.
        if type(value) not in (str, int):
            yield f"{where}: got {value!r}, want a text or a number"
        return
    if not isinstance(value, dict):
        yield f"{where}: got {value!r}, want fields"
        return
    for name, inner in value.items():
        if name not in fields:
            yield f"{where}.{name}: no such field"
        else:
            yield from _mismatches(inner, fields[name].annotation,
                                   f"{where}.{name}")
    for name, info in fields.items():
        if info.is_required() and name not in value:
            yield f"{where}.{name}: missing"


def _mismatches(value: object, schema: object, where: str) -> Iterator[str]:
    """`schema` is one of the list above, or an annotation of a model."""
    alternatives = _alternatives(schema)
    if len(alternatives) > 1:
        tries = [list(_mismatches(value, one, where)) for one in alternatives]
        if all(tries):
            yield from min(tries, key=len)
        return
    schema, = alternatives
    origin, arguments = typing.get_origin(schema), typing.get_args(schema)
    if schema is typing.Any or schema is object:
        return
    if origin is dict:
        schema = {"*": arguments[1]}
    elif origin is list:
        schema = [arguments[0]]
    if hasattr(schema, "model_fields"):
        yield from _model_mismatches(value, schema, where)
    elif isinstance(schema, (dict, list)):
        if not isinstance(value, type(schema)):
            yield f"{where}: got {value!r}, want {_expected(schema)}"
        elif isinstance(schema, list):
            for i, inner in enumerate(value):
                yield from _mismatches(inner, schema[0], f"{where}[{i}]")
        else:
            for name, inner in value.items():
                if name not in schema and "*" not in schema:
                    yield f"{where}.{name}: no such field"
                else:
                    yield from _mismatches(
                        inner, schema.get(name, schema.get("*")),
                        f"{where}.{name}")
    # Python counts true among the integers.
    elif type(value) is not schema and schema is not datetime.datetime:
        yield f"{where}: got {value!r}, want {_expected(schema)}"


def mismatches(document: dict) -> list[str]:
    """Returns the fields of an object that do not fit its kind's schema.

    Skips the test if the schemas are not installed.
    """
    key = (document.get("apiVersion"), document.get("kind"))
    name = f"{key[1]} {document.get('metadata', {}).get('name')}"
    if key in SPECS:
        schema = {"apiVersion": str, "kind": str, "metadata": METADATA,
                  "spec": SPECS[key]}
    else:
        if reason := _why_not():
            raise unittest.SkipTest(reason)
        schema = _model(*key)
        if schema is None:
            return [f"{name}: no schema of {key[0]}"]
    return list(_mismatches(document, schema, name))
