"""The resources of the emulated API server: kinds, paths, and immutable fields."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    fixed: tuple[str, ...] = ()

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.version}"


CORE = (
    Resource("", "v1", "Namespace", "namespaces", namespaced=False),
    Resource("", "v1", "Pod", "pods"),
    Resource("", "v1", "Service", "services"),
    Resource("", "v1", "ServiceAccount", "serviceaccounts"),
    Resource("", "v1", "ConfigMap", "configmaps"),
    Resource("", "v1", "Secret", "secrets"),
    Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Resource(
        "apps",
        "v1",
        "StatefulSet",
        "statefulsets",
        fixed=("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"),
    ),
    Resource(
        "batch", "v1", "Job", "jobs", fixed=("template", "completionMode", "backoffLimitPerIndex")
    ),
    Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    Resource("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False),
)

EXTENSIONS = (
    Resource("cert-manager.io", "v1", "Issuer", "issuers"),
    Resource("cert-manager.io", "v1", "Certificate", "certificates"),
    Resource("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    Resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
)


def api_resources(resources: tuple[Resource, ...], group_version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": [
            {
                "name": one.plural,
                "singularName": one.kind.lower(),
                "kind": one.kind,
                "namespaced": one.namespaced,
                "verbs": verbs,
            }
            for one in resources
            if one.group_version == group_version
        ],
    }


def open_api(resources: tuple[Resource, ...], group_version: str) -> dict[str, Any]:
    """Return the part of OpenAPI v3 that kubectl reads: the server validates fields."""
    parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
    paths = {}
    for one in resources:
        if one.group_version == group_version:
            middle = "/namespaces/{namespace}" if one.namespaced else ""
            kind = {"group": one.group, "version": one.version, "kind": one.kind}
            paths[f"{one.root}{middle}/{one.plural}/{{name}}"] = {
                "parameters": parameters,
                "patch": {
                    "operationId": f"patch{one.kind}",
                    "parameters": parameters,
                    "x-kubernetes-group-version-kind": kind,
                    "responses": {},
                },
            }
    return {
        "openapi": "3.0.0",
        "info": {"title": "emulated", "version": "v1"},
        "paths": paths,
        "components": {"schemas": {}},
    }
