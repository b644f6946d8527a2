"""The logs of containers, each line with its process."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import final

from gradmesh.launch.docker.engine import PROCESS, Container, Engine

_POLL_S = 0.2


@final
class LogReader:
    """Reads the logs of a cluster's containers.

    Args:
        engine: With the cluster.
        names: Processes to read; all by default, also such that come later.
    """

    def __init__(self, engine: Engine, names: Sequence[str] = ()) -> None:
        self._engine = engine
        self._names = names

    def written(self, tail: int | None) -> list[tuple[str, str]]:
        """Return what is there, by the time at which it was written."""
        found = []
        for container in self._containers():
            name = container.labels[PROCESS]
            raw = container.logs(timestamps=True, tail="all" if tail is None else tail)
            for line in raw.decode(errors="replace").splitlines():
                stamp, _, text = line.partition(" ")
                found.append((stamp, name, text))
        return [(name, text) for _, name, text in sorted(found, key=lambda entry: entry[0])]

    def follow(self, tail: int | None) -> Iterator[tuple[str, str]]:
        """Give lines as they come, until the cluster's containers are gone."""
        lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        readers: dict[str, threading.Thread] = {}
        while True:
            # Looked at before the last lines are taken, so that none is missed.
            containers = self._containers()
            for container in containers:
                if container.id not in readers:
                    readers[container.id] = threading.Thread(
                        target=self._read,
                        args=(container, lines, tail),
                        name=f"{container.labels[PROCESS]}-logs",
                        daemon=True,
                    )
                    readers[container.id].start()
            over = not containers and not any(reader.is_alive() for reader in readers.values())
            try:
                while True:
                    yield lines.get(timeout=0 if over else _POLL_S)
            except queue.Empty:
                if over:
                    return

    def _containers(self) -> list[Container]:
        found = self._engine.containers()
        return [c for c in found if not self._names or c.labels[PROCESS] in self._names]

    def _read(
        self, container: Container, lines: "queue.SimpleQueue[tuple[str, str]]", tail: int | None
    ) -> None:
        import docker

        name, last, begin = container.labels[PROCESS], "", "all" if tail is None else tail
        try:
            while True:
                # The stream ends with the process; a container that is started again goes on.
                stream = container.logs(stream=True, follow=True, timestamps=True, tail=begin)
                for raw in _lines(stream):
                    stamp, _, text = raw.partition(" ")
                    if stamp > last:
                        last = stamp
                        lines.put((name, text))
                begin = "all"
                time.sleep(_POLL_S)
                container.reload()
        except (docker.errors.APIError, OSError):
            # The container is gone, and its log with it.
            return


def _lines(stream: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")
