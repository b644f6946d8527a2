from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.plan import ClusterPlan, reachable_address
from gradmesh.launch.state import StateFolder
from gradmesh.sdk.process.network import write_address


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path)


def flag(argv: object, name: str) -> str | None:
    words = list(argv)  # type: ignore[call-overload]
    return words[words.index(name) + 1] if name in words else None


def test_children_are_named_by_role_and_rank(folder: StateFolder) -> None:
    specs = ClusterPlan(parameter_servers=2, trainers=2).specs(folder)

    assert [(spec.name, spec.role, spec.finite) for spec in specs] == [
        ("coordinator", "coordinator", False),
        ("parameter-server-0", "parameter-server", False),
        ("parameter-server-1", "parameter-server", False),
        ("trainer-0", "trainer", True),
        ("trainer-1", "trainer", True),
    ]


def test_workers_import_what_they_serve(folder: StateFolder) -> None:
    settings = {"rpc.imports": ["my.functions", "more"]}
    plan = ClusterPlan(parameter_servers=1, trainers=0, workers=2, settings=settings)

    *_, first, second = plan.specs(folder)

    assert [spec.role for spec in (first, second)] == ["worker"] * 2
    assert flag(second.argv(), "--name") == "worker-1"
    assert flag(second.argv(), "--rank") == "1"
    assert flag(second.argv(), "--import") == "my.functions,more"
    with pytest.raises(ValueError, match="trainers and workers of at least 0"):
        ClusterPlan(parameter_servers=1, trainers=0, workers=-1)


def test_coordinator_keeps_its_port_over_a_restart(folder: StateFolder) -> None:
    coordinator = ClusterPlan(parameter_servers=1, trainers=0).specs(folder)[0]

    first = flag(coordinator.argv(), "--listen")
    write_address(folder.address_file, "127.0.0.1:4711")
    second = flag(coordinator.argv(), "--listen")

    assert (first, second) == ("127.0.0.1:0", "127.0.0.1:4711")


def test_others_wait_for_the_coordinators_address_and_get_it(folder: StateFolder) -> None:
    coordinator, server, trainer = ClusterPlan(parameter_servers=1, trainers=1).specs(folder)
    assert coordinator.ready is not None

    before = coordinator.ready()
    write_address(folder.address_file, "0.0.0.0:4711")

    assert (before, coordinator.ready()) == (False, True)
    assert reachable_address(folder) == "127.0.0.1:4711"
    assert flag(server.argv(), "--coordinator") == "127.0.0.1:4711"
    assert flag(trainer.argv(), "--name") == "trainer-0"


def test_trainers_of_a_cluster_have_one_job_and_every_cluster_another(folder: StateFolder) -> None:
    write_address(folder.address_file, "127.0.0.1:1")

    def jobs(**options: Any) -> set[str]:
        plan = ClusterPlan(parameter_servers=1, trainers=2, **options)
        return {flag(spec.argv(), "--id") for spec in plan.specs(folder)[2:]}

    (first,), (second,) = jobs(), jobs()
    assert first != second
    assert jobs(settings={"job.id": "mine"}) == {"mine"}


def test_a_job_that_the_file_or_the_environment_names_keeps_its_name(
    folder: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_address(folder.address_file, "127.0.0.1:1")
    config = tmp_path / "job.toml"
    config.write_text('[job]\nid = "mine"\n')

    named = ClusterPlan(parameter_servers=1, trainers=1, config=config).specs(folder)[2].argv()
    monkeypatch.setenv("GRADMESH_JOB_ID", "theirs")
    inherited = ClusterPlan(parameter_servers=1, trainers=1).specs(folder)[2].argv()

    assert "--id" not in named
    assert "--id" not in inherited


def test_a_malformed_file_is_reported_by_the_children(folder: StateFolder, tmp_path: Path) -> None:
    write_address(folder.address_file, "127.0.0.1:1")
    config = tmp_path / "job.toml"
    config.write_text("job = 3\n")

    plan = ClusterPlan(parameter_servers=1, trainers=1, config=config)

    assert flag(plan.specs(folder)[2].argv(), "--config") == str(config)


def test_settings_reach_the_roles_that_declare_them(folder: StateFolder) -> None:
    settings = {"job.steps": 5, "log.level": "debug", "metrics.listen": "127.0.0.1:9000"}
    plan = ClusterPlan(parameter_servers=1, trainers=1, settings=settings)
    write_address(folder.address_file, "127.0.0.1:1")

    coordinator, server, trainer = (spec.argv() for spec in plan.specs(folder))

    assert (flag(server, "--steps"), flag(trainer, "--steps")) == (None, "5")
    assert flag(server, "--log-level") == "debug"
    assert flag(coordinator, "--metrics-listen") == "127.0.0.1:9000"
    assert flag(server, "--metrics-listen") == "127.0.0.1:0"


@pytest.mark.parametrize("source", ["environment", "file"])
def test_only_the_coordinator_takes_a_fixed_metrics_address(
    folder: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    write_address(folder.address_file, "127.0.0.1:1")
    config = None
    if source == "environment":
        monkeypatch.setenv("GRADMESH_METRICS_LISTEN", "127.0.0.1:9000")
    else:
        config = tmp_path / "job.toml"
        config.write_text('[metrics]\nlisten = "127.0.0.1:9000"\n')

    plan = ClusterPlan(parameter_servers=1, trainers=1, config=config)
    coordinator, server, trainer = (spec.argv() for spec in plan.specs(folder))

    assert flag(coordinator, "--metrics-listen") is None
    assert flag(server, "--metrics-listen") == "127.0.0.1:0"
    assert flag(trainer, "--metrics-listen") == "127.0.0.1:0"


@pytest.mark.parametrize(("servers", "trainers"), [(0, 1), (1, -1)])
def test_impossible_counts_are_refused(servers: int, trainers: int) -> None:
    with pytest.raises(ValueError, match="expected parameter_servers of at least 1"):
        ClusterPlan(parameter_servers=servers, trainers=trainers)
