"""The logs of a cluster's pods as one stream of lines."""

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import final

from gradmesh.launch.kubernetes.api import Api
from gradmesh.launch.kubernetes.pods import Pods, process_name

_LOOK_S = 1.0


@final
class LogReader:
    """Reads logs.

    Args:
        api: Where the pods are.
        cluster: Its name.
        names: Processes to read; all of them if empty.
    """

    def __init__(self, api: Api, cluster: str, names: Sequence[str]) -> None:
        self._api = api
        self._cluster = cluster
        self._names = names

    def lines(self, *, follow: bool = False, tail: int | None = None) -> Iterator[tuple[str, str]]:
        """Give process and line; with `follow` until the cluster has ended."""
        return self._follow(tail) if follow else self._read(tail)

    def _read(self, tail: int | None) -> Iterator[tuple[str, str]]:
        pods = Pods(self._api, self._cluster)
        for name in pods.names():
            if self._names and name not in self._names:
                continue
            lines = [
                line for pod in pods.of(name) for line in self._api.log(pod["metadata"]["name"])
            ]
            for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
                yield name, line

    def _follow(self, tail: int | None) -> Iterator[tuple[str, str]]:
        """Read each pod in a thread of its own; look for new pods now and then."""
        found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        readers: dict[str, threading.Thread] = {}
        is_first = True
        while True:
            pods = Pods(self._api, self._cluster)
            for pod in pods.all:
                name, uid = process_name(pod), pod["metadata"]["uid"]
                is_new = uid not in readers and (not self._names or name in self._names)
                if is_new and pod.get("status", {}).get("phase") not in (None, "Pending"):
                    readers[uid] = threading.Thread(
                        target=self._read_pod,
                        args=(pod["metadata"]["name"], name, tail if is_first else None, found),
                        name=f"log-{name}",
                        daemon=True,
                    )
                    readers[uid].start()
            is_first = False
            ended = not pods.exist and not any(r.is_alive() for r in readers.values())
            try:
                yield found.get(timeout=0.0 if ended else _LOOK_S)
                while not found.empty():
                    yield found.get()
            except queue.Empty:
                if ended:
                    return

    def _read_pod(
        self,
        pod: str,
        name: str,
        tail: int | None,
        found: "queue.SimpleQueue[tuple[str, str]]",
    ) -> None:
        try:
            for line in self._api.log(pod, follow=True, tail=tail):
                found.put((name, line))
        except (OSError, RuntimeError) as error:
            found.put((name, f"cannot follow the log of pod {pod}: {error}"))
