"""An emulated node: runs the containers of pods as processes of this machine.

Every pod has an address of its own on the loopback network. Volumes are folders. Paths in
volumes and host names of the cluster are replaced by the local ones in arguments and variables; all
else is as the manifest says. The image is this tree: `gradmesh` is its entry point.
"""

import contextlib
import itertools
import os
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tests.deploy.emulator.store import Objects
from tests.deploy.manifests import Object

# Processes that are compared bit by bit must use the same kernels of OpenBLAS.
_KEPT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class Kubelet:
    """Runs pods until closed.

    Args:
        objects: Of the API server.
        folder: For volumes and logs.
        images: What can be pulled.
    """

    def __init__(self, objects: Objects, folder: Path, images: set[str]) -> None:
        self._objects = objects
        self._folder = folder
        self._images = images
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._numbers = itertools.count(1)
        # Concurrent test runs must not share addresses.
        self._block = f"{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
        self._threads: list[threading.Thread] = []
        self._closed = False
        # Set by the cluster before the first pod starts.
        self.api: Any = None

    def address(self, host: str) -> str:
        """Return the address of a pod or service by its host name; it stays."""
        if host not in self._addresses:
            self._addresses[host] = f"127.{self._block}.{next(self._numbers)}"
        return self._addresses[host]

    def address_of(self, pod: Object) -> str:
        return self.address(_host(pod))

    def run(self, pod: Object) -> None:
        """Start a pod; its status shows the progress."""
        thread = threading.Thread(
            target=self._run, args=(pod,), name=f"pod-{pod['metadata']['name']}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def end(self, pod: Object, now: bool) -> None:
        """Ask a pod's process to end."""
        process = self._processes.get(pod["metadata"]["uid"])
        if process is None:
            meta = pod["metadata"]
            self._objects.remove("pods", meta["namespace"], meta["name"])
        elif now:
            process.kill()
        else:
            process.terminate()

    def kill(self, pod: Object) -> None:
        """Kill a pod's process, as a crash or the kernel does."""
        self._processes[pod["metadata"]["uid"]].kill()

    def close(self) -> None:
        self._closed = True
        for process in self._processes.values():
            process.kill()
        for thread in self._threads:
            thread.join(10)

    def log_of(self, pod: Object, follow: bool, tail: int | None) -> Iterator[bytes]:
        """Yield the past and future output of a container."""
        process = self._processes.get(pod["metadata"]["uid"])
        with self._log_file(pod).open("rb") as file:
            text = file.read()
            if tail is not None:
                text = b"".join(text.splitlines(keepends=True)[-tail:] if tail else [])
            if text:
                yield text
            while follow and process is not None:
                ended = process.poll() is not None
                if text := file.read():
                    yield text
                elif ended:
                    return
                else:
                    time.sleep(0.02)

    def _log_file(self, pod: Object) -> Path:
        return self._folder / f"{pod['metadata']['uid']}.log"

    def _run(self, pod: Object) -> None:
        meta, (container,) = pod["metadata"], pod["spec"]["containers"]
        if container["image"] not in self._images:
            waiting = {"reason": "ErrImagePull", "message": f"{container['image']}: not found"}
            self._status(pod, phase="Pending", containers=[{"state": {"waiting": waiting}}])
            return
        # Without its Secrets a pod stays in the state ContainerCreating.
        while not self._has_secrets(pod):
            if self._closed or self._is_deleted(pod):
                self._objects.remove("pods", meta["namespace"], meta["name"])
                return
            time.sleep(0.05)
        restarts, always = 0, pod["spec"].get("restartPolicy", "Always") == "Always"
        while True:
            code = self._run_container(pod, container, restarts)
            ended = {
                "terminated": {"exitCode": code, "reason": "Completed" if not code else "Error"}
            }
            if not always:
                phase = "Succeeded" if code == 0 else "Failed"
                self._status(pod, phase, [{"state": ended, "restartCount": restarts}])
            if self._is_deleted(pod):
                self._objects.remove("pods", meta["namespace"], meta["name"])
                return
            if not always or self._closed:
                return
            restarts += 1
            time.sleep(0.2)

    def _has_secrets(self, pod: Object) -> bool:
        namespace = pod["metadata"]["namespace"]
        present = {one["metadata"]["name"] for one in self._objects.list("secrets", namespace)}
        volumes = pod["spec"].get("volumes", ())
        return {v["secret"]["secretName"] for v in volumes if "secret" in v} <= present

    def _run_container(self, pod: Object, container: Object, restarts: int) -> int:
        place = Volumes(pod, self._objects, self._folder)
        values = _environment(pod, container, self._objects)
        with self._log_file(pod).open("ab") as log:
            process = self.launch(pod, container, values, place, log)
        self._processes[pod["metadata"]["uid"]] = process
        url = self._probe(pod, container)
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        while process.poll() is None:
            state = {
                "state": running,
                "restartCount": restarts,
                "ready": url is None or _answers(url),
            }
            self._status(pod, "Running", [state])
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        if process.stdin is not None:
            process.stdin.close()
        return process.returncode

    def _probe(self, pod: Object, container: Object) -> str | None:
        if "readinessProbe" not in container:
            return None
        probe = container["readinessProbe"]["httpGet"]
        (port,) = (p["containerPort"] for p in container["ports"] if p["name"] == probe["port"])
        return f"http://{self.address_of(pod)}:{port}{probe['path']}"

    def account(self, pod: Object, place: "Volumes") -> tuple[str, Path] | None:
        """Return the API server and the folder of the pod's account, if the pod may call it.

        The account has the Role of its name, as the binding in the manifests gives it.
        """
        if not pod["spec"].get("automountServiceAccountToken", True):
            return None
        namespace, name = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        token = f"account-{namespace}-{name}"
        self.api.roles[token] = [self._objects.get("roles", namespace, name)]
        folder = place.scratch / "account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "namespace").write_text(namespace)
        return self.api.url, folder

    def launch(
        self,
        pod: Object,
        container: Object,
        values: dict[str, str],
        place: "Volumes",
        log: BinaryIO,
    ) -> "subprocess.Popen[bytes]":
        """Start a container, here a process."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {
            name: self._local(value, pod, place.paths(container))
            for name, value in values.items()
            # Kernels are compiled in the tree already.
            if name != "NUMBA_CACHE_DIR"
        }
        environment["GRADMESH_PROCESS_LIFELINE"] = "true"
        program = container.get("command", ["python", "-m", "gradmesh"])
        arguments = list(container["args"])
        account = self.account(pod, place)
        if account is not None:
            arguments += ["--server", account[0], "--account", str(account[1])]
        return subprocess.Popen(
            [sys.executable, *program[1:], *arguments],
            env=environment,
            cwd=place.scratch,
            # A lifeline: no process outlives the test.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )

    def _local(self, value: str, pod: Object, paths: Mapping[str, Path]) -> str:
        """Return a value with local addresses and paths."""
        value = value.replace("0.0.0.0", self.address_of(pod))
        value = re.sub(
            rf"{re.escape(_host(pod))}\.[a-z0-9-]+\.[a-z0-9-]+\.svc", self.address_of(pod), value
        )
        for service in self._objects.list("services", pod["metadata"]["namespace"]):
            name = service["metadata"]["name"]
            value = re.sub(rf"^{re.escape(name)}:", f"{self.address(name + '-0')}:", value)
        for inside, here in sorted(paths.items(), reverse=True):
            if value == inside or value.startswith(inside + "/"):
                return str(here) + value.removeprefix(inside)
        return value

    def _is_deleted(self, pod: Object) -> bool:
        meta = pod["metadata"]
        held = self._objects.list("pods", meta["namespace"])
        return any(
            p["metadata"]["uid"] == meta["uid"] and "deletionTimestamp" in p["metadata"]
            for p in held
        )

    def _status(self, pod: Object, phase: str, containers: list[Any]) -> None:
        meta = pod["metadata"]
        ready = all(one.get("ready") for one in containers)
        status = {
            "phase": phase,
            "podIP": self.address_of(pod),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [
                {
                    "name": pod["spec"]["containers"][0]["name"],
                    "image": pod["spec"]["containers"][0]["image"],
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    **one,
                }
                for one in containers
            ],
        }
        self._objects.set_status("pods", meta["namespace"], meta["name"], status)


class Volumes:
    """A pod's volumes as folders of this machine."""

    def __init__(self, pod: Object, objects: Objects, folder: Path) -> None:
        meta = pod["metadata"]
        self.scratch = folder / meta["uid"]
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._folders: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                place = folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            else:
                place = self.scratch / volume["name"]
            place.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                source = objects.get("configmaps", meta["namespace"], volume["configMap"]["name"])
                _write(place, source, volume["configMap"])
            if "secret" in volume:
                name = volume["secret"]["secretName"]
                _write(place, objects.get("secrets", meta["namespace"], name), volume["secret"])
            self._folders[volume["name"]] = place

    def paths(self, container: Object) -> dict[str, Path]:
        """Return the folders that a container sees, by where it sees them."""
        mounts = container.get("volumeMounts", ())
        return {mount["mountPath"]: self._folders[mount["name"]] for mount in mounts}


def _write(place: Path, made: Object, source: Object) -> None:
    is_secret = made["kind"] == "Secret"
    texts = {} if is_secret else made.get("data", {})
    encoded = made.get("data" if is_secret else "binaryData", {})
    data = {key: text.encode() for key, text in texts.items()}
    data |= {key: b64decode(text) for key, text in encoded.items()}
    paths = {item["key"]: item["path"] for item in source.get("items", ())} or {k: k for k in data}
    for key, path in paths.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data[key])


def _host(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _environment(pod: Object, container: Object, objects: Objects) -> dict[str, str]:
    values: dict[str, str] = {}
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom", ()):
        values |= objects.get("configmaps", namespace, source["configMapRef"]["name"])["data"]
    for one in container.get("env", ()):
        text = one.get("value")
        if text is None:
            text = _from(pod, one["valueFrom"])
        values[one["name"]] = re.sub(
            r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text
        )
    return values


def _from(pod: Object, source: Object) -> str:
    if "resourceFieldRef" in source:
        return "1"
    path = source["fieldRef"]["fieldPath"]
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(pod["metadata"][found[1]][found[2]])
    return str(pod["metadata"][path.removeprefix("metadata.")])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
