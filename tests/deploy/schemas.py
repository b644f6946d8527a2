"""Strict schemas: those of Kubernetes itself, and of the resources that its extensions add."""

import functools
import json
from typing import Any

import jsonschema
from kubernetes_validate import utils

from tests.deploy.manifests import Object, job_of

VERSIONS = ("1.29", "1.32", "1.37")

# The library reads its files again for each object.
utils.schema_contents = functools.cache(utils.schema_contents)


def _object(required: list[str], **properties: Any) -> Any:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_ISSUER = _object(["name"], name=_TEXT, kind={"enum": ["Issuer", "ClusterIssuer"]}, group=_TEXT)
_KEY = _object([], algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]}, size={"type": "integer"},
               rotationPolicy={"enum": ["Never", "Always"]})  # fmt: skip
_USAGES = {"type": "array", "items": {"enum": ["server auth", "client auth"]}}
_NAMES = {"type": "array", "items": _TEXT, "minItems": 1}
_LABELS = {"type": "object", "additionalProperties": _TEXT}

# The fields that we use of each, with the types that their definitions (cert-manager 1.16,
# prometheus-operator 0.79, jobset 0.8) give them.
_CUSTOM = {
    "cert-manager.io/v1/Issuer": _object(
        [], selfSigned=_object([]), ca=_object(["secretName"], secretName=_TEXT)
    ),
    "cert-manager.io/v1/Certificate": _object(
        ["secretName", "issuerRef"],
        secretName=_TEXT,
        issuerRef=_ISSUER,
        isCA={"type": "boolean"},
        commonName=_TEXT,
        duration={"type": "string", "pattern": "^[0-9]+h$"},
        renewBefore={"type": "string", "pattern": "^[0-9]+h$"},
        privateKey=_KEY,
        usages=_USAGES,
        dnsNames=_NAMES,
        ipAddresses=_NAMES,
    ),
    "monitoring.coreos.com/v1/ServiceMonitor": _object(
        ["selector", "endpoints"],
        selector=_object([], matchLabels=_LABELS),
        targetLabels=_NAMES,
        endpoints={
            "type": "array",
            "items": _object(["port"], port=_TEXT, path=_TEXT, interval=_TEXT),
        },
    ),
    "jobset.x-k8s.io/v1alpha2/JobSet": _object(
        ["replicatedJobs"],
        network=_object([], enableDNSHostnames={"type": "boolean"}),
        failurePolicy=_object([], maxRestarts={"type": "integer", "minimum": 0}),
        replicatedJobs={
            "type": "array",
            "items": _object(
                ["name", "template"],
                name=_TEXT,
                replicas={"type": "integer"},
                template={"type": "object"},
            ),
        },
    ),
}


def check(made: Object, version: str) -> None:
    """Check that a version of Kubernetes accepts an object, without unknown fields.

    Raises:
        ValidationError: It does not.
    """
    text = json.dumps(made, sort_keys=True)
    _check(text, version)


@functools.cache
def _check(text: str, version: str) -> None:
    made = json.loads(text)
    schema = _CUSTOM.get(f"{made['apiVersion']}/{made['kind']}")
    if schema is None:
        utils.validate(made, version, strict=True)
        return
    jsonschema.validate(made["spec"], schema)
    if made["kind"] == "JobSet":
        utils.validate(job_of(made), version, strict=True)
