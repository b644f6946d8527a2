"""The emulated API server's objects: created, changed and deleted under Kubernetes' rules."""

import copy
import datetime
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from jsonschema import ValidationError

from tests.deploy.emulator.resources import Resource
from tests.deploy.manifests import Object
from tests.deploy.schemas import check

MAX_CONFIG_BYTES = 1 << 20
Key = tuple[str, str, str]


class Refused(Exception):
    """A request that the API server refuses."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class Objects:
    """All objects by (plural, namespace, name); guarded by `lock`."""

    def __init__(self, schema_version: str = "1.32") -> None:
        self.lock = threading.RLock()
        self._objects: dict[Key, Object] = {}
        self._versions = itertools.count(1)
        self._schema_version = schema_version
        self.on_delete: Callable[[Resource, Object, str], bool] = lambda r, o, policy: True

    def list(self, plural: str, namespace: str = "", labels: str = "") -> list[Object]:
        wanted = dict(part.split("=", 1) for part in labels.split(",") if part)
        with self.lock:
            return [
                copy.deepcopy(made)
                for (kind, where, _), made in sorted(self._objects.items())
                if kind == plural
                and namespace in ("", where)
                and wanted.items() <= made["metadata"].get("labels", {}).items()
            ]

    def get(self, plural: str, namespace: str, name: str) -> Object:
        with self.lock:
            made = self._objects.get((plural, namespace, name))
            if made is None:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            return copy.deepcopy(made)

    def create(self, resource: Resource, namespace: str, made: Object, dry: bool = False) -> Object:
        made = copy.deepcopy(made)
        name = made["metadata"].get("name")
        key = (resource.plural, namespace if resource.namespaced else "", name)
        self._check(resource, made)
        with self.lock:
            if key in self._objects:
                raise Refused(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
            if resource.namespaced and ("namespaces", "", namespace) not in self._objects:
                raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            made["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": now,
                "resourceVersion": str(next(self._versions)),
                "generation": 1,
            }
            if resource.namespaced:
                made["metadata"]["namespace"] = namespace
            if not dry:
                self._objects[key] = made
            return copy.deepcopy(made)

    def change(self, resource: Resource, old: Object, new: Object, dry: bool = False) -> Object:
        """Put a new version in place of one that was read."""
        meta = old["metadata"]
        namespace = meta.get("namespace", "") if resource.namespaced else ""
        key = (resource.plural, namespace, meta["name"])
        self._check(resource, new)
        for field in resource.fixed:
            if old["spec"].get(field) != new["spec"].get(field):
                raise Refused(
                    422, "Invalid", f"{resource.kind} {meta['name']!r}: spec.{field} is immutable"
                )
        with self.lock:
            current = self.get(*key)
            if current["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                raise Refused(409, "Conflict", f"{meta['name']!r}: the object has been modified")
            if json.dumps(current, sort_keys=True) == json.dumps(new, sort_keys=True):
                return new
            made = copy.deepcopy(new)
            made["metadata"]["resourceVersion"] = str(next(self._versions))
            if old.get("spec") != new.get("spec"):
                made["metadata"]["generation"] = meta["generation"] + 1
            if not dry:
                self._objects[key] = made
            return copy.deepcopy(made)

    def set_status(self, plural: str, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        with self.lock:
            made = self._objects.get((plural, namespace, name))
            if made is not None:
                made["status"] = {**made.get("status", {}), **status}

    def delete(
        self, resource: Resource, namespace: str, name: str, policy: str, dry: bool = False
    ) -> Object:
        with self.lock:
            made = self.get(resource.plural, namespace, name)
            if not dry and self.on_delete(resource, made, policy):
                self.remove(resource.plural, namespace, name)
            return made

    def remove(self, plural: str, namespace: str, name: str) -> None:
        with self.lock:
            self._objects.pop((plural, namespace, name), None)

    def mark_deleted(self, plural: str, namespace: str, name: str) -> None:
        with self.lock:
            made = self._objects.get((plural, namespace, name))
            if made is not None:
                made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def _check(self, resource: Resource, made: Object) -> None:
        if made.get("kind") != resource.kind or made.get("apiVersion") != resource.group_version:
            raise Refused(400, "BadRequest", f"this is no {resource.kind}")
        plain = {key: value for key, value in made.items() if key != "status"}
        try:
            check(plain, self._schema_version)
        except ValidationError as error:
            raise Refused(400, "BadRequest", f"strict decoding error: {error.message}") from None
        if resource.kind == "ConfigMap":
            size = sum(len(text.encode()) for text in made.get("data", {}).values())
            size += sum(len(text) * 3 // 4 for text in made.get("binaryData", {}).values())
            if size > MAX_CONFIG_BYTES:
                raise Refused(422, "Invalid", "data: Too long: may not be more than 1048576 bytes")
        spec = made.get("spec", {})
        if resource.kind == "Job" and spec["completions"] != spec["parallelism"]:
            raise Refused(422, "Invalid", "completions and parallelism change together here")
