"""A whole emulated cluster: API server, the controllers of StatefulSets and Jobs, a node."""

import hashlib
import json
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradmesh.protos.version import VERSION
from tests.deploy.emulator.kubelet import Kubelet
from tests.deploy.emulator.resources import CORE, Resource
from tests.deploy.emulator.server import ApiServer
from tests.deploy.emulator.store import Objects
from tests.deploy.manifests import Object

_PODS = next(one for one in CORE if one.kind == "Pod")
_CLAIMS = next(one for one in CORE if one.kind == "PersistentVolumeClaim")
_NAMESPACES = next(one for one in CORE if one.kind == "Namespace")
_BAD_CONFIG = 2


class EmulatedCluster:
    """Runs the applied objects until closed."""

    def __init__(
        self,
        folder: Path,
        namespace: str = "default",
        node: Callable[[Objects, Path, set[str]], Kubelet] = Kubelet,
        **options: Any,
    ) -> None:
        self.api = ApiServer(**options)
        self.objects = self.api.objects
        self.node = node(self.objects, folder, {f"gradmesh:{VERSION}"})
        self.node.api = self.api
        self.api.log_of = self.node.log_of
        self.api.address_of = self.node.address_of
        self.objects.on_delete = self._on_delete
        self.objects.create(
            _NAMESPACES,
            "",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        )
        self._failures: dict[str, dict[int, int]] = {}
        self._counted: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._control, name="controllers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(10)
        self.node.close()
        self.api.close()

    def pod(self, component: str, index: int = 0) -> Object:
        """Return the newest pod of a component."""
        found = [
            pod
            for pod in self.objects.list("pods")
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
            and _index(pod) == index
        ]
        return max(found, key=lambda pod: int(pod["metadata"]["resourceVersion"]))

    def is_replaced(self, old: Object) -> bool:
        """Return whether another pod of the same name has replaced one."""
        name, uid = old["metadata"]["name"], old["metadata"]["uid"]
        return any(
            pod["metadata"]["name"] == name
            and pod["metadata"]["uid"] != uid
            and pod["status"]["phase"] == "Running"
            for pod in self.objects.list("pods")
        )

    def _on_delete(self, resource: Resource, made: Object, policy: str) -> bool:
        """End pods before their objects go; return whether an object goes at once."""
        meta = made["metadata"]
        if resource.kind == "Pod":
            self.objects.mark_deleted("pods", meta["namespace"], meta["name"])
            if made.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                return True
            self.node.end(made, now=policy == "now")
            return False
        # As in the API: deleting a Job without a propagation policy keeps its pods.
        orphaned = resource.kind == "Job" and policy not in ("Background", "Foreground")
        if resource.kind in ("StatefulSet", "Job") and not orphaned:
            for pod in self.objects.list("pods", meta["namespace"]):
                if _owner(pod) == meta["uid"]:
                    self.objects.delete(_PODS, meta["namespace"], pod["metadata"]["name"], "")
        return True

    def _control(self) -> None:
        while not self._closed.wait(0.05):
            with self.objects.lock:
                for made in self.objects.list("statefulsets"):
                    self._stateful(made)
                for made in self.objects.list("jobs"):
                    self._job(made)

    def _pods_of(self, made: Object) -> list[Object]:
        meta = made["metadata"]
        return [p for p in self.objects.list("pods", meta["namespace"]) if _owner(p) == meta["uid"]]

    def _stateful(self, made: Object) -> None:
        meta, spec = made["metadata"], made["spec"]
        pods = {pod["metadata"]["name"]: pod for pod in self._pods_of(made)}
        for index in range(spec["replicas"]):
            name = f"{meta['name']}-{index}"
            old = pods.pop(name, None)
            if old is not None:
                # A changed template is rolled out.
                outdated = old["metadata"]["annotations"]["template"] != _generation(made)
                if outdated and "deletionTimestamp" not in old["metadata"]:
                    self.objects.delete(_PODS, meta["namespace"], name, "")
                continue
            pod = _pod(made, name)
            pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = str(index)
            for claim in spec["volumeClaimTemplates"]:
                claimed = f"{claim['metadata']['name']}-{name}"
                self._claim(claim, claimed, meta["namespace"])
                pod["spec"]["volumes"].append(
                    {
                        "name": claim["metadata"]["name"],
                        "persistentVolumeClaim": {"claimName": claimed},
                    }
                )
            self._start(pod)
        for pod in pods.values():
            if "deletionTimestamp" not in pod["metadata"]:
                self.objects.delete(_PODS, meta["namespace"], pod["metadata"]["name"], "")

    def _claim(self, template: Object, name: str, namespace: str) -> None:
        if not any(
            c["metadata"]["name"] == name for c in self.objects.list("persistentvolumeclaims")
        ):
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **template}
            claim["metadata"] = {**template["metadata"], "name": name}
            self.objects.create(_CLAIMS, namespace, claim)

    def _job(self, made: Object) -> None:
        meta, spec, status = made["metadata"], made["spec"], made.get("status", {})
        if status.get("conditions"):
            return
        pods = self._pods_of(made)
        failures = self._failures.setdefault(meta["uid"], {})
        done, active, reason = set(), set(), ""
        for pod in pods:
            index, phase = _index(pod), pod.get("status", {}).get("phase")
            if index >= spec["completions"] and phase not in ("Succeeded", "Failed"):
                if "deletionTimestamp" not in pod["metadata"]:
                    self.objects.delete(_PODS, meta["namespace"], pod["metadata"]["name"], "")
            elif phase == "Succeeded":
                done.add(index)
            elif phase == "Failed" and pod["metadata"]["uid"] not in self._counted:
                self._counted.add(pod["metadata"]["uid"])
                failures[index] = failures.get(index, 0) + 1
                code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
                if code == _BAD_CONFIG:
                    reason = f"container trainer failed with exit code {code} (podFailurePolicy)"
            elif phase != "Failed":
                active.add(index)
        if any(
            count > spec.get("backoffLimitPerIndex", spec.get("backoffLimit"))
            for count in failures.values()
        ):
            reason = "too many failed indexes"
        news = {"active": len(active), "succeeded": len(done), "failed": sum(failures.values())}
        if reason:
            news["conditions"] = [{"type": "Failed", "status": "True", "message": reason}]
            for pod in pods:
                if pod.get("status", {}).get("phase") == "Running":
                    self.objects.delete(_PODS, meta["namespace"], pod["metadata"]["name"], "")
        elif len(done) == spec["completions"]:
            news["conditions"] = [{"type": "Complete", "status": "True", "message": ""}]
        self.objects.set_status("jobs", meta["namespace"], meta["name"], news)
        for index in range(spec["completions"] if not reason else 0):
            if index not in done | active:
                pod = _pod(made, f"{meta['name']}-{index}-{secrets.token_hex(3)}")
                pod["spec"]["hostname"] = f"{meta['name']}-{index}"
                pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = str(
                    index
                )
                pod["metadata"]["labels"] |= {
                    "batch.kubernetes.io/job-completion-index": str(index),
                    "batch.kubernetes.io/job-name": meta["name"],
                    "batch.kubernetes.io/controller-uid": meta["uid"],
                }
                self._start(pod)

    def _start(self, pod: Object) -> None:
        made = self.objects.create(_PODS, pod["metadata"]["namespace"], pod)
        self.objects.set_status(
            "pods", made["metadata"]["namespace"], made["metadata"]["name"], {"phase": "Pending"}
        )
        self.node.run(made)


def _pod(made: Object, name: str) -> Object:
    meta, template = made["metadata"], made["spec"]["template"]
    owner = {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": dict(template["metadata"]["labels"]),
            "annotations": {
                **template["metadata"].get("annotations", {}),
                "template": _generation(made),
            },
            "ownerReferences": [owner],
        },
        "spec": {**template["spec"], "volumes": list(template["spec"]["volumes"])},
    }


def _generation(made: Object) -> str:
    text = json.dumps(made["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences", ())
    return str(owners[0]["uid"]) if owners else ""


def _index(pod: Object) -> int:
    labels = pod["metadata"]["labels"]
    return int(
        labels.get("apps.kubernetes.io/pod-index")
        or labels.get("batch.kubernetes.io/job-completion-index", 0)
    )
