"""An API server in this process: discovery, objects, rights, logs and forwarded ports.

kubectl and the Python client use it as a real one. It refuses what a real one refuses:
unknown fields, unknown namespaces, changes of what is immutable, users without the right.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.deploy.emulator import websocket
from tests.deploy.emulator.patch import patched
from tests.deploy.emulator.resources import CORE, EXTENSIONS, Resource, api_resources, open_api
from tests.deploy.emulator.store import Objects, Refused
from tests.deploy.manifests import Object

_VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0", "platform": "linux/amd64"}
_PATH = re.compile(
    r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<ns>[^/]+)(?=/[^/]))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


class ApiServer:
    """Serves on a free port until closed.

    Args:
        extensions: Whether the resources of cert-manager and so on are installed.
        version: Whose schemas objects must fit.
    """

    def __init__(self, *, extensions: bool = True, version: str = "1.32") -> None:
        self.resources = CORE + (EXTENSIONS if extensions else ())
        self.objects = Objects(version)
        # Roles by token; a token that is not here may do everything.
        self.roles: dict[str, Sequence[Object]] = {}
        self.log_of: Callable[[Object, bool, int | None], Iterator[bytes]] | None = None
        self.address_of: Callable[[Object], str] | None = None
        # Called with method and path before a request is served; may wait, or raise Refused.
        self.before: Callable[[str, str], None] = lambda method, path: None
        # Rights that requests needed.
        self.used: set[tuple[str, str, str]] = set()
        api = self

        class Handler(_Handler):
            server_api = api

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="api-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join(5)
        self._http.server_close()

    def kubeconfig(self, folder: Path, token: str = "admin", namespace: str = "default") -> Path:
        """Write a kubeconfig for a user of this server."""
        file = folder / f"kubeconfig-{token}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "emulated",
            "clusters": [{"name": "emulated", "cluster": {"server": self.url}}],
            "users": [{"name": token, "user": {"token": token}}],
            "contexts": [
                {
                    "name": "emulated",
                    "context": {"cluster": "emulated", "user": token, "namespace": namespace},
                }
            ],
        }
        file.write_text(yaml.safe_dump(config))
        return file

    def resource(self, root: str, plural: str) -> Resource:
        for one in self.resources:
            if one.root == root and one.plural == plural:
                return one
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def allow(self, token: str, verb: str, group: str, resource: str, name: str = "") -> None:
        self.used.add((verb, group, resource))
        roles = self.roles.get(token)
        if roles is None:
            return
        for role in roles:
            for rule in role["rules"]:
                if (
                    group in rule["apiGroups"]
                    and resource in rule["resources"]
                    and verb in rule["verbs"]
                    and (not rule.get("resourceNames") or name in rule["resourceNames"])
                ):
                    return
        raise Refused(
            403,
            "Forbidden",
            f'User "{token}" cannot {verb} resource "{resource}" in API group "{group}"',
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_api: ApiServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        try:
            self.server_api.before(self.command, url.path)
            answer = self._discovery(url.path)
            if answer is None:
                answer = self._objects(url.path)
            if answer is not None:
                self._reply(200 if self.command != "POST" else 201, answer)
        except Refused as refused:
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": refused.code,
                "reason": refused.reason,
                "message": str(refused),
            }
            self._reply(refused.code, status)
        except OSError:
            self.close_connection = True

    def _reply(self, code: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _discovery(self, path: str) -> Any:
        resources = self.server_api.resources
        versions = sorted({one.group_version for one in resources if one.group})
        if path == "/version":
            return _VERSION
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [
                {
                    "name": version.partition("/")[0],
                    "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
                    "preferredVersion": {
                        "groupVersion": version,
                        "version": version.partition("/")[2],
                    },
                }
                for version in versions
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path == "/api/v1":
            return api_resources(resources, "v1")
        if path.removeprefix("/apis/") in versions:
            return api_resources(resources, path.removeprefix("/apis/"))
        if path == "/openapi/v3":
            roots = sorted({one.root for one in resources})
            return {
                "paths": {
                    root[1:]: {"serverRelativeURL": f"/openapi/v3{root}?hash=1"} for root in roots
                }
            }
        if path.startswith("/openapi/v3/"):
            root = path.removeprefix("/openapi/v3/")
            return open_api(resources, root.removeprefix("apis/").removeprefix("api/"))
        return None

    def _objects(self, path: str) -> Any:
        found = _PATH.fullmatch(path)
        if found is None:
            raise Refused(404, "NotFound", f"no such path {path}")
        api, objects = self.server_api, self.server_api.objects
        namespace, name = found["ns"] or "", found["name"] or ""
        resource = api.resource(found[1], found["plural"])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        verb = _VERBS.get(self.command, "get" if name else "list")
        full = f"{resource.plural}/{found['sub']}" if found["sub"] else resource.plural
        api.allow(token, verb, resource.group, full, name)
        if found["sub"] == "log":
            return self._log(objects.get("pods", namespace, name))
        if found["sub"] == "portforward":
            return self._forward(objects.get("pods", namespace, name))
        dry = self.query.get("dryRun") == "All"
        if self.command == "GET" and name:
            return objects.get(resource.plural, namespace, name)
        if self.command == "GET":
            items = objects.list(resource.plural, namespace, self.query.get("labelSelector", ""))
            return {
                "kind": f"{resource.kind}List",
                "apiVersion": resource.group_version,
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }
        if self.command == "POST":
            return objects.create(resource, namespace, self._body(), dry)
        if self.command == "DELETE":
            wanted = self._body() or {}
            policy = wanted.get("propagationPolicy") or self.query.get("propagationPolicy", "")
            if wanted.get("gracePeriodSeconds") == 0 or self.query.get("gracePeriodSeconds") == "0":
                policy = "now"
            return objects.delete(resource, namespace, name, policy, dry)
        return self._patch(resource, namespace, name, dry)

    def _patch(self, resource: Resource, namespace: str, name: str, dry: bool) -> Object:
        objects = self.server_api.objects
        kind = self.headers["Content-Type"] or ""
        body = self._body()
        with objects.lock:
            try:
                old = objects.get(resource.plural, namespace, name)
            except Refused:
                if "apply-patch" in kind:
                    return objects.create(resource, namespace, body, dry)
                raise
            new = body if self.command == "PUT" else patched(kind, old, body)
            return objects.change(resource, old, new, dry)

    def _body(self) -> Any:
        if not self.body:
            return None
        return yaml.safe_load(self.body) if self.body[:1] != b"{" else json.loads(self.body)

    def _log(self, pod: Object) -> None:
        if self.server_api.log_of is None or pod["status"]["phase"] == "Pending":
            raise Refused(400, "BadRequest", f"container in pod {pod['metadata']['name']} waits")
        tail = self.query.get("tailLines")
        lines = self.server_api.log_of(
            pod, self.query.get("follow") == "true", None if tail is None else int(tail)
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for data in lines:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _forward(self, pod: Object) -> None:
        assert self.server_api.address_of is not None
        websocket.accept(self)
        self.close_connection = True
        host = self.server_api.address_of(pod)
        websocket.forward(self, host, int(self.query["ports"]))


def wait_until(is_true: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Return once the condition holds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.02)
