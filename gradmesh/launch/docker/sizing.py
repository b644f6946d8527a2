"""Change the number of processes of a role; new containers are copies of existing ones."""

import copy
from collections.abc import Sequence
from typing import Any

from gradmesh.launch.docker.engine import PROCESS, ROLE, Container, Engine, refusals

_COUNT = "GRADMESH_COORDINATOR_TRAINERS"
_STOP_S = 30


def change_trainers(engine: Engine, containers: Sequence[Container], count: int) -> None:
    """Change the number of trainers; those with the lowest numbers remain.

    The coordinator reads the number from its variables, so its container is replaced; its volume
    has its state, and its address does not change.
    """
    with refusals("change the number of trainers"):
        _shrink(engine, containers, "trainer", count)
        _renew(engine, containers[0], f"{_COUNT}={count}")
        _grow(engine, containers, "trainer", count)


def change_servers(engine: Engine, containers: Sequence[Container], count: int) -> None:
    """Change the number of parameter servers; the coordinator migrates their buckets."""
    with refusals("change the number of parameter servers"):
        _shrink(engine, containers, "parameter-server", count)
        _grow(engine, containers, "parameter-server", count)


def _shrink(engine: Engine, containers: Sequence[Container], role: str, count: int) -> None:
    for leaving in _of(containers, role)[count:]:
        leaving.stop(timeout=_STOP_S)
        leaving.remove(force=True)
        engine.remove_volume(leaving.labels[PROCESS])


def _grow(engine: Engine, containers: Sequence[Container], role: str, count: int) -> None:
    present = _of(containers, role)
    for rank in range(len(present), count):
        _start_like(engine, present[0], f"{role}-{rank}")


def _of(containers: Sequence[Container], role: str) -> list[Container]:
    return [container for container in containers if container.labels[ROLE] == role]


def _renew(engine: Engine, coordinator: Container, variable: str) -> None:
    coordinator.stop(timeout=_STOP_S)
    made = dict(coordinator.attrs["Config"])
    others = [v for v in made["Env"] if not v.startswith(variable.partition("=")[0] + "=")]
    made["Env"] = [*others, variable]
    coordinator.remove(force=True)
    _create(engine, made, coordinator.attrs["HostConfig"], coordinator.labels[PROCESS])


def _start_like(engine: Engine, model: Container, process: str) -> None:
    """Start a copy of another process of the role, with its own name and volume."""
    made, host = copy.deepcopy((model.attrs["Config"], model.attrs["HostConfig"]))
    former, role = model.labels[PROCESS], model.labels[ROLE]
    prefix = f"GRADMESH_{role.replace('-', '_').upper()}_"
    own = (f"{prefix}NAME=", f"{prefix}ADVERTISE=")
    made["Env"] = [v.replace(former, process) if v.startswith(own) else v for v in made["Env"]]
    made["Labels"] |= engine.labels(role, process)
    made["Hostname"] = process
    volume = f"{engine.volume_name(former)}:"
    for place, bind in enumerate(host["Binds"] or ()):
        if bind.startswith(volume):
            host["Binds"][place] = f"{engine.make_volume(process)}:{bind.removeprefix(volume)}"
    _create(engine, made, host, process)


def _create(engine: Engine, made: dict[str, Any], host: dict[str, Any], process: str) -> None:
    api = engine.client.api
    aliases = api.create_endpoint_config(aliases=[process])
    network = api.create_networking_config({engine.name: aliases})
    config = {**made, "HostConfig": host, "NetworkingConfig": network}
    created = api.create_container_from_config(config, f"{engine.name}-{process}")
    api.start(created["Id"])
