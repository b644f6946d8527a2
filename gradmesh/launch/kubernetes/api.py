"""A small client of the Kubernetes API for the launcher; objects are plain dicts.

Every call has a deadline, and every failure raises one of our own errors.
"""

import contextlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from gradmesh.launch.kubernetes.errors import (
    KubernetesForbidden,
    KubernetesMissing,
    KubernetesRejected,
    KubernetesUnreachable,
)
from gradmesh.launch.logs import complete_lines

Object: TypeAlias = dict[str, Any]

_CALL_S = (5.0, 30.0)
# A pod may log nothing for a long time.
_FOLLOW_S = 86400.0
# kind: (its API, its name in the methods of that API)
_KINDS = {
    "ConfigMap": ("CoreV1Api", "config_map"),
    "Secret": ("CoreV1Api", "secret"),
    "Service": ("CoreV1Api", "service"),
    "ServiceAccount": ("CoreV1Api", "service_account"),
    "PersistentVolumeClaim": ("CoreV1Api", "persistent_volume_claim"),
    "Pod": ("CoreV1Api", "pod"),
    "StatefulSet": ("AppsV1Api", "stateful_set"),
    "Job": ("BatchV1Api", "job"),
    "PodDisruptionBudget": ("PolicyV1Api", "pod_disruption_budget"),
    "NetworkPolicy": ("NetworkingV1Api", "network_policy"),
}
_NOT_FOUND, _FORBIDDEN = 404, (401, 403)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Selects the Kubernetes cluster, the namespace and the image.

    Attributes:
        namespace: Namespace of all objects.
        context: Context of the kubeconfig; its current one by default.
        kubeconfig: The file; kubectl's own by default, or the pod's account within a cluster.
        image: Image of the pods; that of this version by default.
    """

    namespace: str = "gradmesh"
    context: str | None = None
    kubeconfig: Path | None = None
    image: str | None = None


@final
class Api:
    """A namespace of a cluster.

    Args:
        options: The cluster and namespace.

    Raises:
        KubernetesMissing: The client is not installed.
        KubernetesUnreachable: No cluster is configured.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        self.namespace = options.namespace
        self._configuration = _configuration(options)
        self._client: Any = None
        self.server: str = self._configuration.host

    def create(self, made: Object) -> Object:
        """Create an object.

        Raises:
            KubernetesRejected: Status 409 if one of its name exists already.
        """
        kind, name = made["kind"], made["metadata"]["name"]
        return self._call(f"create {kind} {name}", kind, "create", self.namespace, body=made)

    def read(self, kind: str, name: str) -> Object | None:
        """Return an object, or None if it does not exist or the user may not read it."""
        try:
            return self._call(f"read {kind} {name}", kind, "read", name, self.namespace)
        except KubernetesForbidden:
            return None
        except KubernetesRejected as error:
            if error.status != _NOT_FOUND:
                raise
            return None

    def find(self, kind: str, labels: str) -> list[Object]:
        """Return the objects with labels, such as `a=b,c=d`."""
        found = self._call(f"list {kind}s", kind, "list", self.namespace, label_selector=labels)
        items: list[Object] = found["items"]
        return items

    def patch(self, kind: str, name: str, change: Object) -> Object:
        """Change an object by a strategic merge patch."""
        return self._call(f"change {kind} {name}", kind, "patch", name, self.namespace, body=change)

    def delete(self, kind: str, name: str, *, now: bool = False) -> None:
        """Delete an object and its dependents; a missing object is not an error."""
        extra = {"grace_period_seconds": 0} if now else {}
        try:
            self._call(
                f"delete {kind} {name}",
                kind,
                "delete",
                name,
                self.namespace,
                propagation_policy="Background",
                **extra,
            )
        except KubernetesRejected as error:
            if error.status != _NOT_FOUND:
                raise

    def log(self, pod: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield the lines of a pod's log; one that has not started has none."""
        extra = {} if tail is None else {"tail_lines": tail}
        try:
            response = self._response(
                f"read the log of {pod}",
                "Pod",
                "read",
                pod,
                self.namespace,
                suffix="_log",
                # A follower waits as long as the pod lives.
                timeout=(_CALL_S[0], _FOLLOW_S) if follow else None,
                follow=follow,
                **extra,
            )
        except KubernetesRejected:
            return
        yield from complete_lines(_chunks(response))

    def forward(self, pod: str, port: int) -> tuple[socket.socket, Callable[[], object]]:
        """Return a connection to a port of a pod, and a function that frees it after its close.

        Raises:
            KubernetesUnreachable: There is none.
        """
        from kubernetes import client
        from kubernetes.stream import portforward

        # Connecting modifies the client, so each connection has its own.
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        before = set(threading.enumerate())
        try:
            made = portforward(
                core.connect_get_namespaced_pod_portforward,
                pod,
                self.namespace,
                ports=str(port),
            )
        except client.ApiException as error:
            raise KubernetesUnreachable(
                f"cannot forward port {port} of pod {pod}: {error.reason or error.status}"
            ) from None
        # The raw socket: its wrapper lacks methods.
        connection: socket.socket = made.socket(port)._socket
        # The client's thread that carries the bytes; it has no other name, and when the pod ends
        # the connection it leaves its own end open.
        carriers = [
            thread
            for thread in set(threading.enumerate()) - before
            if thread.name.startswith("Kubernetes port forward")
        ]

        def free() -> None:
            for thread in carriers:
                thread.join(_CALL_S[0])
            made.websocket.shutdown()

        return connection, free

    def _call(self, action: str, kind: str, verb: str, *where: str, **extra: Any) -> Object:
        response = self._response(action, kind, verb, *where, **extra)
        answer: Object = json.loads(response.data)
        # A launcher is never closed, so it keeps no connections.
        self._client.rest_client.pool_manager.clear()
        return answer

    def _response(
        self,
        action: str,
        kind: str,
        verb: str,
        *where: str,
        suffix: str = "",
        timeout: tuple[float, float] | None = None,
        **extra: Any,
    ) -> Any:
        """Make a call and return urllib3's response."""
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        group, name = _KINDS[kind]
        if self._client is None:
            self._client = client.ApiClient(self._configuration)
        api = getattr(client, group)(self._client)
        method = getattr(api, f"{verb}_namespaced_{name}{suffix}")
        try:
            response = method(
                *where, _preload_content=False, _request_timeout=timeout or _CALL_S, **extra
            )
        except client.ApiException as error:
            raise self._error(action, error.status or 0, error.body or error.reason) from None
        except (HTTPError, OSError, http.client.HTTPException) as error:
            raise KubernetesUnreachable(
                f"cannot {action}: {self.server} does not answer: {error}"
            ) from None
        if response.status >= http.client.MULTIPLE_CHOICES:
            raise self._error(action, response.status, response.read())
        return response

    def _error(self, action: str, status: int, body: Any) -> Exception:
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text
        if status in _FORBIDDEN:
            return KubernetesForbidden(f"{action} in namespace {self.namespace}", message)
        if status == 0:
            return KubernetesUnreachable(f"cannot {action}: {message}")
        return KubernetesRejected(action, status, message)


def _configuration(options: KubernetesOptions) -> Any:
    try:
        from kubernetes import client, config
    except ImportError:
        raise KubernetesMissing from None
    made = client.Configuration()
    loader: Any = config
    try:
        if _is_in_cluster(options):
            loader.load_incluster_config(made)
        else:
            file = None if options.kubeconfig is None else str(options.kubeconfig)
            loader.load_kube_config(file, options.context, made, persist_config=False)
    except (config.ConfigException, OSError) as error:
        raise KubernetesUnreachable(f"no cluster is configured: {error}") from None
    # The launcher itself decides what is retried.
    made.retries = False
    return made


def _is_in_cluster(options: KubernetesOptions) -> bool:
    chosen = options.kubeconfig is not None or options.context is not None
    return not chosen and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ


def _chunks(response: Any) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError

    # The end of a stream adds nothing to the pod's status.
    with contextlib.closing(response), contextlib.suppress(HTTPError, OSError):
        yield from response.stream(4096, decode_content=False)
