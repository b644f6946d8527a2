"""More trainers or fewer, in containers that are made as the others were."""

from collections.abc import Sequence
from typing import Any

from gradmesh.launch.docker.engine import PROCESS, ROLE, Container, Engine, refusals

_COUNT = "GRADMESH_COORDINATOR_TRAINERS"
_STOP_S = 30


def change_trainers(engine: Engine, containers: Sequence[Container], count: int) -> None:
    """Have as many trainers as asked for; those with the lowest numbers stay.

    The coordinator learns the number from its variables, so its container is made anew; its state
    is in its volume, and the others find it where it was.
    """
    trainers = [c for c in containers if c.labels[ROLE] == "trainer"]
    with refusals("change the number of trainers"):
        for leaving in trainers[count:]:
            leaving.stop(timeout=_STOP_S)
            leaving.remove(force=True)
        _renew(engine, containers[0], f"{_COUNT}={count}")
        for rank in range(len(trainers), count):
            _start_like(engine, trainers[0], f"trainer-{rank}")


def _renew(engine: Engine, coordinator: Container, variable: str) -> None:
    coordinator.stop(timeout=_STOP_S)
    made = dict(coordinator.attrs["Config"])
    others = [v for v in made["Env"] if not v.startswith(variable.partition("=")[0] + "=")]
    made["Env"] = [*others, variable]
    coordinator.remove(force=True)
    _create(engine, coordinator, made, coordinator.labels[PROCESS])


def _start_like(engine: Engine, model: Container, process: str) -> None:
    made, former = dict(model.attrs["Config"]), model.labels[PROCESS]
    own = (f"GRADMESH_TRAINER_NAME={former}", f"GRADMESH_TRAINER_ADVERTISE={former}:")
    made["Env"] = [v.replace(former, process) if v.startswith(own) else v for v in made["Env"]]
    made["Labels"] = {**made["Labels"], **engine.labels("trainer", process)}
    made["Hostname"] = process
    _create(engine, model, made, process)


def _create(engine: Engine, model: Container, made: dict[str, Any], process: str) -> None:
    """Create and start a container from the description of another one."""
    api = engine.client.api
    aliases = api.create_endpoint_config(aliases=[process])
    config = {
        **made,
        "HostConfig": model.attrs["HostConfig"],
        "NetworkingConfig": api.create_networking_config({engine.name: aliases}),
    }
    created = api.create_container_from_config(config, f"{engine.name}-{process}")
    api.start(created["Id"])
