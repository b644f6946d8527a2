"""The launcher of containers: a label on one engine's objects names their cluster."""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from gradmesh.launch.docker.blueprint import COORDINATOR_PORT, IMAGE, TOKEN_FILE, Blueprint
from gradmesh.launch.docker.engine import (
    ORDER,
    PROCESS,
    ROLE,
    Container,
    ContainerLogs,
    DockerRejected,
    Engine,
    ImageMissing,
    refusals,
)
from gradmesh.launch.docker.sizing import change_servers, change_trainers
from gradmesh.launch.errors import CannotScale, ClusterExists, ClusterFailed, NoCluster
from gradmesh.launch.foreground import follow_remote
from gradmesh.launch.launcher import (
    ClusterRequest,
    ClusterView,
    Launcher,
    ProcessState,
    ProcessView,
    Role,
)
from gradmesh.launch.logs import readable
from gradmesh.sdk.process.local_token import publish_until_exit
from gradmesh.sdk.process.network import split

_log = logging.getLogger(__name__)

_POLL_S = 0.1
_TAIL = 20
_KILLED = 137
_BAD_CONFIG = 2
_ASK = ["python", "-IS", "/opt/gradmesh/healthcheck.py"]


@final
class DockerLauncher(Launcher):
    """Runs a cluster as containers of one engine.

    Args:
        name: Name of the cluster.
        image: Image of the containers; that of this version by default.
        ready_s: Seconds that the coordinator may take to serve.
    """

    def __init__(self, name: str, image: str | None = None, ready_s: float = 60.0) -> None:
        self._engine = Engine(name)
        self._image = image or IMAGE
        self._ready_s = ready_s
        self._published = ""

    def up(self, request: ClusterRequest) -> str:
        """Create and start all containers, the coordinator first."""
        if self._engine.containers():
            raise ClusterExists(self._place(), self._options())
        blueprint = Blueprint(self._engine, self._image, request)
        blueprint.check()
        self._check_image()
        try:
            self._engine.make_network()
            self._make_token(blueprint)
            for role, process in blueprint.processes():
                port = _free_port(request.listen) if role == "coordinator" else 0
                self._start(blueprint.container(role, process, port))
                if role == "coordinator":
                    self._wait_until_ready(process)
        except BaseException:
            self._remove(0)
            raise
        return self.status().address

    def run(
        self, request: ClusterRequest, on_line: Callable[[str, str], None], drain_s: float
    ) -> int:
        """Start the containers, show their logs, and remove them at the end."""
        self.up(request)
        return follow_remote(
            self,
            on_line,
            drain_s,
            until_done=request.until_done,
            tail=lambda outcome: self._tail(outcome.child) if outcome.child else (),
            remove=self._remove,
        )

    def status(self) -> ClusterView:
        """Read the state of the containers."""
        containers = self._found()
        ports = containers[0].attrs["HostConfig"]["PortBindings"][f"{COORDINATOR_PORT}/tcp"]
        address = f"127.0.0.1:{ports[0]['HostPort']}"
        self._publish_token(containers[0], address)
        return ClusterView(
            address=address,
            processes=[_view(container) for container in containers],
        )

    def logs(
        self, names: Sequence[str] = (), *, follow: bool = False, tail: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Read the engine's log of each container."""
        self._found()
        reader = ContainerLogs(self._engine, names)
        return reader.follow(tail) if follow else iter(reader.written(tail))

    def scale(self, role: Role, count: int) -> None:
        """Change the number of trainers, or start and end parameter servers for a reshard."""
        containers = self._found()
        if count < 1:
            raise CannotScale(role, "one at least must stay; `gradmesh down` ends all")
        if not any(c.labels[ROLE] == role for c in containers):
            raise CannotScale(role, "the cluster was started without any")
        if role == "parameter-server":
            change_servers(self._engine, containers, count)
        elif role == "trainer":
            change_trainers(self._engine, containers, count)
            self._wait_until_ready("coordinator")
        else:
            raise CannotScale(role, "only trainers and parameter servers can be scaled here")

    def down(self, timeout_s: float) -> bool:
        """Stop trainers and workers, then servers, then the coordinator; remove it all."""
        self._found()
        return self._remove(timeout_s)

    def _found(self) -> list[Container]:
        containers = self._engine.containers()
        if not containers or containers[0].labels[ROLE] != "coordinator":
            raise NoCluster(self._place(), self._options())
        return containers

    def _check_image(self) -> None:
        import docker

        try:
            self._engine.client.images.get(self._image)
        except docker.errors.ImageNotFound:
            raise ImageMissing(self._image) from None

    def _make_token(self, blueprint: Blueprint) -> None:
        import docker

        arguments = blueprint.token_maker()
        if arguments is None:
            return
        with refusals("make the token"):
            try:
                self._engine.client.containers.run(**arguments)
            except docker.errors.ContainerError as error:
                raise DockerRejected("make the token", str(error)) from None

    def _publish_token(self, coordinator: Container, address: str) -> None:
        """Let this process's clients find the token, which is in a volume of the engine."""
        import docker

        if self._published == address:
            return
        try:
            read = coordinator.exec_run(["cat", TOKEN_FILE])
            if read.exit_code == 0:
                publish_until_exit(address, read.output.decode("ascii").strip())
                self._published = address
        except (docker.errors.APIError, OSError) as error:
            # It restarts, or other users control the folder; clients can be given the file.
            _log.info("the token was not published", extra={"error": str(error)})

    def _start(self, arguments: dict[str, object]) -> None:
        with refusals(f"start {arguments['name']}"):
            self._engine.client.containers.create(**arguments).start()

    def _wait_until_ready(self, process: str) -> None:
        """Wait until a process is ready, by the health check in its container."""
        deadline = time.monotonic() + self._ready_s
        while True:
            (container,) = (c for c in self._engine.containers() if c.labels[PROCESS] == process)
            state = container.attrs["State"]
            if state["Running"] and not state["Restarting"]:
                import docker

                try:
                    if container.exec_run(_ASK).exit_code == 0:
                        return
                except docker.errors.APIError:
                    # It ended after it was listed.
                    continue
            ended = state["Status"] in ("exited", "restarting")
            refused = ended and state["ExitCode"] == _BAD_CONFIG
            if refused or time.monotonic() > deadline:
                why = "refused its configuration" if refused else "did not serve in time"
                code = _BAD_CONFIG if refused else 4
                raise ClusterFailed(f"{process} {why}; see its log", code, self._tail(process))
            time.sleep(_POLL_S)

    def _tail(self, process: str) -> tuple[str, ...]:
        lines = ContainerLogs(self._engine, [process]).written(_TAIL)
        return tuple(readable(line) for _, line in lines)

    def _remove(self, timeout_s: float) -> bool:
        """Stop role by role and remove; return whether no process had to be killed."""
        deadline = time.monotonic() + timeout_s
        in_order = True
        for roles in (("trainer", "worker"), ORDER[1:2], ORDER[:1]):
            group = [c for c in self._engine.containers() if c.labels[ROLE] in roles]
            if group:
                left_s = max(0.0, deadline - time.monotonic())
                with ThreadPoolExecutor(len(group)) as pool:
                    in_order &= all(pool.map(lambda one: stop(one, left_s), group))  # noqa: B023
        self._engine.remove_rest()
        return in_order

    def _place(self) -> str:
        return f"the container engine under the name {self._engine.name}"

    def _options(self) -> str:
        return f"--on docker --name {self._engine.name}"


def stop(container: Container, timeout_s: float) -> bool:
    """Stop and remove a container; return whether its process drained."""
    with refusals(f"stop {container.name}"):
        was_running = container.attrs["State"]["Running"]
        container.stop(timeout=int(timeout_s))
        container.reload()
        drained = container.attrs["State"]["ExitCode"] != _KILLED
        container.remove(force=True)
    return drained or not was_running


def _free_port(listen: str) -> int:
    """Return the requested port, or a free one: the engine's choice would change on restart."""
    port = split(listen)[1]
    if port:
        return port
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _view(container: Container) -> ProcessView:
    state = container.attrs["State"]
    shown: ProcessState = "running" if state["Status"] == "running" else "waiting"
    if state["Status"] in ("exited", "dead"):
        done = state["ExitCode"] == 0 and container.labels[ROLE] == "trainer"
        shown = "done" if done else "failed"
    return ProcessView(
        name=container.labels[PROCESS],
        role=container.labels[ROLE],
        state=shown,
        restarts=container.attrs["RestartCount"],
        place=f"container {container.name}",
    )
