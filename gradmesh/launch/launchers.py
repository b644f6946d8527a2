"""The launchers by the name that `--on` takes; each is imported when it is used."""

from pathlib import Path
from typing import Literal, TypeAlias

from gradmesh.launch.launcher import Launcher

Place: TypeAlias = Literal["local"]


def launcher(on: Place, *, state: Path, name: str) -> Launcher:
    """Return the launcher of a place.

    Args:
        on: Where the cluster runs.
        state: State folder of a local cluster.
        name: Name of a cluster elsewhere.
    """
    from gradmesh.launch.local_launcher import LocalLauncher

    return LocalLauncher(state)
