from gradmesh.cli.cluster import (
    drain_s,
    for_children,
    given_by_flag,
    listen_address,
    not_flags,
)
from gradmesh.launch.sections import cluster_sections
from gradmesh.sdk.process.config import load


def test_children_get_settings_given_only_to_this_process() -> None:
    loaded = load(
        cluster_sections(),
        flags={"job.steps": "7", "log.level": "debug"},
        environment={"GRADMESH_JOB_SEED": "3", "GRADMESH_PROCESS_DRAIN_S": "4"},
    )

    assert given_by_flag(loaded) == {"job.steps": 7, "log.level": "debug"}
    assert for_children(loaded) == {
        "job.steps": 7,
        "job.seed": 3,
        "log.level": "debug",
        "metrics.listen": "off",
        "process.drain_s": 4.0,
    }
    assert drain_s(loaded) == 34.0


def test_coordinator_takes_a_free_port_unless_one_is_configured() -> None:
    free = load(cluster_sections())
    fixed = load(cluster_sections(), environment={"GRADMESH_COORDINATOR_LISTEN": "127.0.0.1:7070"})

    assert listen_address(free) == "127.0.0.1:0"
    assert listen_address(fixed) == "127.0.0.1:7070"


def test_counts_are_flags_and_addresses_are_not() -> None:
    assert "coordinator.trainers" not in not_flags()
    assert "coordinator.listen" in not_flags()
    assert "trainer.name" in not_flags()
