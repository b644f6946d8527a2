"""Starts parameter servers that were asked for, and lets those go that are not needed any more."""

import threading
from typing import final

from gradmesh.launch.plan import SERVER_ROLE, ClusterPlan
from gradmesh.launch.state import StateFolder
from gradmesh.launch.supervisor import Supervisor

_LOOK_S = 0.2


@final
class Scaler:
    """A thread beside a supervisor.

    `gradmesh scale` leaves a number in the state folder: before servers are added, and when others
    have been emptied. The supervisor needs to know nothing else of the mesh.

    Args:
        supervisor: Who runs the servers.
        plan: How a server is started.
        folder: Where the number is.
    """

    def __init__(self, supervisor: Supervisor, plan: ClusterPlan, folder: StateFolder) -> None:
        self._supervisor = supervisor
        self._plan = plan
        self._folder = folder
        self._count = plan.parameter_servers
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scaler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            wanted = self._folder.wanted_servers()
            if wanted is not None and wanted != self._count:
                self._fit(wanted)
                self._count = wanted

    def _fit(self, wanted: int) -> None:
        """Have servers 0 to wanted - 1 run, and no others."""
        running = {p["name"] for p in self._supervisor.describe() if p["role"] == SERVER_ROLE}
        needed = [self._plan.server(self._folder, number) for number in range(wanted)]
        missing = [spec for spec in needed if spec.name not in running]
        self._supervisor.change(missing, running - {spec.name for spec in needed})

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        self._thread.join(5.0)
