"""The fields of Kubernetes that deploy/kubernetes uses.

An API server refuses misspelt fields only on request, and there is no API
server where these tests run. So this is an allow list: a field that is not in
it is either a mistake or must be added here.
"""

from collections.abc import Iterator

# A schema is a type, a list of one schema, or fields by name; "*" stands for
# any name. Alternatives are a tuple.
QUANTITY = (str, int)
LABELS = {"*": str}
METADATA = {"name": str, "namespace": str, "labels": LABELS,
            "annotations": LABELS}
SELECTOR = {"matchLabels": LABELS,
            "matchExpressions": [{"key": str, "operator": str,
                                  "values": [str]}]}
HTTP_PROBE = {"httpGet": {"path": str, "port": (str, int), "scheme": str},
              "periodSeconds": int, "timeoutSeconds": int,
              "failureThreshold": int}
CONTAINER = {
    "name": str, "image": str, "args": [str],
    "env": [{"name": str, "value": str,
             "valueFrom": {"fieldRef": {"fieldPath": str, "apiVersion": str}}}],
    "envFrom": [{"configMapRef": {"name": str}}],
    "ports": [{"name": str, "containerPort": int}],
    "startupProbe": HTTP_PROBE, "readinessProbe": HTTP_PROBE,
    "livenessProbe": HTTP_PROBE,
    "resources": {"requests": {"*": QUANTITY}, "limits": {"*": QUANTITY}},
    "securityContext": {"allowPrivilegeEscalation": bool,
                        "readOnlyRootFilesystem": bool,
                        "capabilities": {"drop": [str]}},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD = {
    "restartPolicy": str, "automountServiceAccountToken": bool,
    "enableServiceLinks": bool, "terminationGracePeriodSeconds": int,
    "securityContext": {
        "runAsNonRoot": bool, "runAsUser": int, "runAsGroup": int,
        "fsGroup": int, "fsGroupChangePolicy": str,
        "seccompProfile": {"type": str}},
    "containers": [CONTAINER],
    "tolerations": [{"key": str, "operator": str, "effect": str}],
    "imagePullSecrets": [{"name": str}], "priorityClassName": str,
    "topologySpreadConstraints": [{
        "maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str,
        "labelSelector": SELECTOR, "matchLabelKeys": [str]}],
    "volumes": [{"name": str, "emptyDir": {"sizeLimit": QUANTITY},
                 "secret": {"secretName": str, "defaultMode": int},
                 "persistentVolumeClaim": {"claimName": str, "readOnly": bool}}],
}
TEMPLATE = {"metadata": {"labels": LABELS, "annotations": LABELS}, "spec": POD}
CLAIM = {"accessModes": [str],
         "resources": {"requests": {"storage": QUANTITY}}}
JOB = {
    "completionMode": str, "completions": int, "parallelism": int,
    "backoffLimit": int, "ttlSecondsAfterFinished": int,
    "template": TEMPLATE,
    "podFailurePolicy": {"rules": [{
        "action": str,
        "onExitCodes": {"containerName": str, "operator": str,
                        "values": [int]},
        "onPodConditions": [{"type": str, "status": str}]}]},
}
# A pod that no Job or StatefulSet owns.
LONE_POD = {
    **POD, "activeDeadlineSeconds": int,
    "containers": [{**CONTAINER, "command": [str]}]}
PEER = {"podSelector": SELECTOR, "namespaceSelector": SELECTOR,
        "ipBlock": {"cidr": str}}
PORTS = [{"protocol": str, "port": int}]
SECRET_KEY = {"name": str, "key": str}
ENDPOINT = {"port": str, "interval": str, "scrapeTimeout": str,
            "scheme": str,
            "tlsConfig": {"ca": {"secret": SECRET_KEY},
                          "cert": {"secret": SECRET_KEY},
                          "keySecret": SECRET_KEY, "serverName": str},
            "relabelings": [{"sourceLabels": [str], "separator": str,
                             "targetLabel": str, "replacement": str,
                             "action": str, "regex": str}]}
REPLICA = {"replicas": int, "restartPolicy": str, "template": TEMPLATE}

SPECS = {
    ("v1", "Service"): {
        "clusterIP": str, "publishNotReadyAddresses": bool,
        "selector": LABELS,
        "ports": [{"name": str, "port": int, "targetPort": (str, int),
                   "appProtocol": str}]},
    ("v1", "PersistentVolumeClaim"): CLAIM,
    ("v1", "Pod"): LONE_POD,
    ("apps/v1", "StatefulSet"): {
        "serviceName": str, "replicas": int, "podManagementPolicy": str,
        "selector": SELECTOR, "template": TEMPLATE,
        "volumeClaimTemplates": [{"metadata": METADATA, "spec": CLAIM}]},
    ("batch/v1", "Job"): JOB,
    ("policy/v1", "PodDisruptionBudget"): {
        "maxUnavailable": (int, str), "selector": SELECTOR},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector": SELECTOR, "policyTypes": [str],
        "ingress": [{"from": [PEER], "ports": PORTS}],
        "egress": [{"to": [PEER], "ports": PORTS}]},
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
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "network": {"enableDNSHostnames": bool,
                    "publishNotReadyAddresses": bool},
        "startupPolicy": {"startupPolicyOrder": str},
        "successPolicy": {"operator": str},
        "failurePolicy": {"maxRestarts": int},
        "ttlSecondsAfterFinished": int,
        "replicatedJobs": [{"name": str, "replicas": int,
                            "template": {"spec": JOB}}]},
    ("kubeflow.org/v1", "TFJob"): {
        "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int,
                      "ttlSecondsAfterFinished": int},
        "tfReplicaSpecs": {"PS": REPLICA, "Worker": REPLICA}},
}
WITHOUT_SPEC = {("v1", "ConfigMap"): {"data": {"*": str}},
                ("v1", "Namespace"): {}}


def _mismatches(value: object, schema: object, where: str) -> Iterator[str]:
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield f"{where}: got {value!r}, want fields"
            return
        for name, inner in value.items():
            if name not in schema and "*" not in schema:
                yield f"{where}.{name}: no such field"
            else:
                yield from _mismatches(inner, schema.get(name, schema.get("*")),
                                       f"{where}.{name}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield f"{where}: got {value!r}, want a list"
            return
        for i, inner in enumerate(value):
            yield from _mismatches(inner, schema[0], f"{where}[{i}]")
    else:
        kinds = schema if isinstance(schema, tuple) else (schema,)
        # Python counts true among the integers.
        if type(value) not in kinds:
            yield (f"{where}: got {value!r}, want "
                   f"{' or '.join(kind.__name__ for kind in kinds)}")


def mismatches(document: dict) -> list[str]:
    """Returns the fields of an object that do not fit its kind's schema."""
    key = (document.get("apiVersion"), document.get("kind"))
    name = f"{key[1]} {document.get('metadata', {}).get('name')}"
    schema = {"apiVersion": str, "kind": str, "metadata": METADATA}
    if key in SPECS:
        schema["spec"] = SPECS[key]
    elif key in WITHOUT_SPEC:
        schema.update(WITHOUT_SPEC[key])
    else:
        return [f"{name}: kind unknown to kubernetes_schema.py"]
    return list(_mismatches(document, schema, name))
