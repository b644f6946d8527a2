from pathlib import Path

from gradmesh.launch.variables import variables


def test_settings_become_what_processes_read() -> None:
    given = {
        "job.steps": 7,
        "data.shuffle": False,
        "data.columns": ("label", "dense"),
        "coordinator.state_dir": Path("/x"),
        "job.seed": None,
        "nobody.reads": 1,
    }

    assert variables(given) == {
        "GRADMESH_JOB_STEPS": "7",
        "GRADMESH_DATA_SHUFFLE": "false",
        "GRADMESH_DATA_COLUMNS": "label,dense",
        "GRADMESH_COORDINATOR_STATE_DIR": "/x",
    }
