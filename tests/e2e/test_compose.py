"""`docker compose up`, for real: it trains, loses processes, and ends with the same bits."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.e2e.compose import Compose, running, until

STEPS = 1000
RUN_S = 150


def trained(compose: Compose, folder: Path) -> Path:
    """Wait for the report and return the output of the job."""
    report = compose.containers("report")[0]
    assert compose.ended_with(report, RUN_S) == 0, compose.lines("trainer")
    for trainer in compose.containers("trainer"):
        assert compose.ended_with(trainer, 30) == 0
    return compose.output(folder)


def tensors(output: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a model: dense layers, rows, optimizer state."""
    model = output / "model"
    return {
        f"{file.relative_to(model)}:{name}": tensor
        for file in sorted(model.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Compose, Path]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with running("gradmesh-e2e-calm", GRADMESH_JOB_STEPS=STEPS) as compose:
        yield compose, trained(compose, folder / "output")
    assert compose.left() == {"containers": "", "volumes": "", "networks": ""}


def test_it_trains_and_ends_with_a_report(undisturbed: tuple[Compose, Path]) -> None:
    compose, output = undisturbed
    report = json.loads((output / "report.json").read_text())
    figures = report["figures"]
    shown = "\n".join(compose.lines("report"))

    assert figures["steps"] == STEPS
    # One that docker-compose.yml does not name comes from .env, too.
    assert report["settings"]["job"]["table_optimizer"] == "sgd"
    assert figures["best_auc"] - 0.03 < figures["auc"] < figures["best_auc"]
    assert "AUC, held out" in shown
    assert f"{figures['auc']:.4f}" in shown
    assert "training is done" in shown


def test_servers_stay_healthy_after_training(undisturbed: tuple[Compose, Path]) -> None:
    compose, _ = undisturbed
    for service in ("coordinator", "parameter-server-0", "parameter-server-1"):
        (container,) = compose.containers(service)

        assert compose.state(container)["Health"]["Status"] == "healthy"


def test_tables_can_be_read_from_inside(undisturbed: tuple[Compose, Path]) -> None:
    compose, _ = undisturbed
    ask = ("exec", "-T", "coordinator", "gradmesh", "table", "ls", "--coordinator")

    assert "feature-0" in compose.run(*ask, "coordinator:7070")


def test_rows_outlive_the_containers(undisturbed: tuple[Compose, Path]) -> None:
    compose, _ = undisturbed
    before = rows_of("feature-0", compose)
    compose.run("down", "-t", "20")
    compose.run("up", "-d", "--no-build", "parameter-server-0", "parameter-server-1")
    servers = [compose.containers(f"parameter-server-{rank}")[0] for rank in (0, 1)]
    until(lambda: all(compose.state(s)["Health"]["Status"] == "healthy" for s in servers), 60)

    assert rows_of("feature-0", compose) == before


def rows_of(table: str, compose: Compose) -> str:
    """Return a digest of a table's rows, written out and read within the cluster."""
    file = f"/tmp/{table}.safetensors"
    export = f"gradmesh table export {table} {file} --coordinator coordinator:7070 >/dev/null"
    return compose.run(
        "exec", "-T", "coordinator", "sh", "-c", f"{export} && sha256sum {file}"
    ).split()[0]


def test_killed_processes_come_back_and_the_result_has_the_same_bits(
    undisturbed: tuple[Compose, Path], tmp_path: Path
) -> None:
    with running(
        "gradmesh-e2e-harm", GRADMESH_JOB_STEPS=STEPS, GRADMESH_JOB_LOG_EVERY=5
    ) as compose:
        (server,) = compose.containers("parameter-server-1")
        trainer = compose.containers("trainer")[0]
        until(lambda: any("trained" in line for line in compose.lines("trainer")), RUN_S)
        compose.kill_process(server)
        until(lambda: compose.inspect(server)["RestartCount"] == 1, 60)
        until(lambda: any("resuming" in line for line in compose.lines("trainer")), RUN_S)
        compose.kill_process(trainer)
        until(lambda: compose.inspect(trainer)["RestartCount"] == 1, 60)
        output = trained(compose, tmp_path / "output")
        log = "\n".join(compose.lines("coordinator"))

    calm, harmed = tensors(undisturbed[1]), tensors(output)
    assert compose.left() == {"containers": "", "volumes": "", "networks": ""}
    # No process waited for a lease: the restarted one replaced its own name.
    assert log.count("member restarted") == 2
    assert calm.keys() == harmed.keys()
    assert [name for name in calm if calm[name].tobytes() != harmed[name].tobytes()] == []


def test_more_trainers_and_an_orderly_end(tmp_path: Path) -> None:
    more = ("--scale", "trainer=4")
    settings = {"GRADMESH_COORDINATOR_MIN_TRAINERS": 4, "GRADMESH_JOB_STEPS": 100_000}
    with running("gradmesh-e2e-four", *more, **settings) as compose:
        until(lambda: any("step=100" in line for line in compose.lines("trainer")), RUN_S)
        joined = [line for line in compose.lines("trainer") if "world_size=4" in line]
        services = ("trainer", "parameter-server-0", "parameter-server-1", "coordinator")
        for service in services:
            compose.run("stop", "-t", "20", service)
        codes = {s: {compose.state(c)["ExitCode"] for c in compose.containers(s)} for s in services}

    assert len([line for line in joined if " joined " in line]) >= 4
    # SIGTERM drained each of them within the grace period; 137 would be a kill.
    assert codes == {service: {143} for service in services}
    assert compose.left() == {"containers": "", "volumes": "", "networks": ""}
