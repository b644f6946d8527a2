"""Forward a port of this machine to the coordinator's pod, through the API server.

Each connection looks the pod up, so that it reaches a replaced pod, too.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import final

from gradmesh.launch.kubernetes.api import Api
from gradmesh.launch.kubernetes.errors import KubernetesUnreachable

_log = logging.getLogger(__name__)

_CHUNK = 1 << 16


@final
class Forward:
    """Listens on a free port of the loopback network until closed.

    Args:
        api: The cluster.
        pod: Returns the pod's name, or None if none exists; called for each connection.
        port: Port of the pod.

    Attributes:
        address: The forwarded address on this machine.
    """

    def __init__(self, api: Api, pod: Callable[[], str | None], port: int) -> None:
        self._api = api
        self._pod = pod
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._listen, name="forward", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections; may be called twice."""
        # Closing alone would leave the thread in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._carry, args=(near,), name="forward-connection", daemon=True
            ).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.closing(near):
            try:
                pod = self._pod()
                if pod is None:
                    return
                far, free = self._api.forward(pod, self._port)
            except (RuntimeError, OSError) as error:
                # The client detects the closed connection, and retries.
                _log.debug("cannot forward", extra={"error": str(error)})
                return
            with contextlib.ExitStack() as undo:
                undo.callback(free)
                undo.callback(far.close)
                back = threading.Thread(
                    target=_receive, args=(far, near), name="forward-back", daemon=True
                )
                back.start()
                _send(near, far)
                back.join()


def _send(near: socket.socket, far: socket.socket) -> None:
    """Copy bytes from near to far until near ends, then shut far down for writing."""
    with contextlib.suppress(OSError):
        while data := near.recv(_CHUNK):
            far.sendall(data)
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_WR)


def _receive(far: socket.socket, near: socket.socket) -> None:
    """Copy bytes from far to near until far ends.

    Read to the end even after near has closed: otherwise the client's thread behind far fails.
    """
    is_wanted = True
    with contextlib.suppress(OSError):
        while data := far.recv(_CHUNK):
            try:
                if is_wanted:
                    near.sendall(data)
            except OSError:
                is_wanted = False
                far.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_RDWR)


_open: dict[tuple[str, str, str], Forward] = {}
_guard = threading.Lock()  # guards _open


def forwarded(api: Api, cluster: str, pod: Callable[[], str | None], port: int) -> str:
    """Return the forwarded address of a cluster's coordinator: one port for this process's life.

    Raises:
        KubernetesUnreachable: No port of this machine is free.
    """
    key = (api.server, api.namespace, cluster)
    with _guard:
        if key not in _open:
            try:
                _open[key] = Forward(api, pod, port)
            except OSError as error:
                raise KubernetesUnreachable(f"cannot listen on this machine: {error}") from None
        return _open[key].address


def close_forward(api: Api, cluster: str) -> None:
    """Close the port of a cluster that has ended."""
    with _guard:
        made = _open.pop((api.server, api.namespace, cluster), None)
    if made is not None:
        made.close()
