"""Clients of `gradmesh bench load`: busy, idle, or connections that send nothing."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from typing import TYPE_CHECKING, final

import numpy as np

from gradmesh.benchmarks.processes import serve
from gradmesh.sdk.cluster.status import from_message
from gradmesh.sdk.process.process import raise_file_limit
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    import gradmesh as gm

_ROWS, _DIM, _IDS = 100_000, 16, 64
_RECONNECT_S = 0.5


def busy(address: str, count: int) -> None:
    """Look rows up when told to, each client on a connection of its own."""
    import gradmesh as gm

    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        meshes = [stack.enter_context(gm.connect(address)) for _ in range(count)]
        tables = list(pool.map(_table, meshes))

        def measure(seconds: float) -> list[float]:
            until = time.perf_counter() + seconds
            found = pool.map(_look_up, tables, range(count), [until] * count)
            return [one for times in found for one in times]

        serve(measure)


def _table(mesh: "gm.Mesh") -> "gm.Table":
    import gradmesh as gm

    table = mesh.table("load", rows=_ROWS, dim=_DIM, optimizer=gm.optim.SGD(lr=0.1))
    table.lookup(np.arange(_IDS))
    return table


def _look_up(table: "gm.Table", number: int, until: float) -> list[float]:
    ids = np.random.default_rng(number).integers(0, _ROWS, _IDS)
    times = []
    while (begun := time.perf_counter()) < until:
        table.lookup(ids)
        times.append(time.perf_counter() - begun)
    return times


def idle(address: str, count: int) -> None:
    """Join as a number of members that only renew their leases."""
    import gradmesh as gm

    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(gm.connect(address))
        serve(list)


def half_open(address: str, count: int) -> None:
    """Hold connections to the coordinator and to the servers; send nothing."""
    import gradmesh as gm

    with gm.connect(address) as mesh:
        status = from_message(mesh.connection.coordinator.get_status(Deadline.after(30)))
    servers = [one.address for one in status.members if one.role == "parameter-server"]
    held = _HalfOpen(list(islice(cycle([address, *servers]), count)))
    threading.Thread(target=held.keep, daemon=True).start()
    serve(list)


@final
class _HalfOpen:
    """Connections that send nothing, opened again when they are cut off."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._open = [self._connect(address) for address in addresses]

    def _connect(self, address: str) -> socket.socket | None:
        host, _, port = address.rpartition(":")
        try:
            sock = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            return None
        sock.setblocking(False)
        return sock

    def keep(self) -> None:
        """Open those again that the servers cut off, for ever."""
        while True:
            time.sleep(_RECONNECT_S)
            for number, sock in enumerate(self._open):
                if sock is None or _is_cut_off(sock):
                    if sock is not None:
                        sock.close()
                    self._open[number] = self._connect(self._addresses[number])


def _is_cut_off(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


if __name__ == "__main__":
    raise_file_limit()
    # A thousand members on one busy machine renew late at times; their leases are longer.
    logging.disable(logging.WARNING)
    {"busy": busy, "idle": idle, "half-open": half_open}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
