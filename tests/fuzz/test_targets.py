"""Every target of the fuzzer, for the frames of one seed; `make fuzz` runs a million."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.fuzz.__main__ import IN_SANDBOX, ON_CLUSTER
from tests.fuzz.batch import Batch, Target
from tests.fuzz.cluster import FuzzCluster, started_cluster
from tests.fuzz.cluster_target import ClusterTarget
from tests.fuzz.sandbox import SandboxTarget

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("fuzz")]

SEED = 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[FuzzCluster]:
    with started_cluster() as made:
        yield made


def check(batch: Batch, frames: int) -> None:
    assert [finding.what for finding in batch.findings] == []
    assert batch.frames >= frames
    assert len(batch.answers) > 1


def named(kinds: Sequence[type[Target]]) -> Iterator[object]:
    for kind in kinds:
        yield pytest.param(kind, id=kind.name)


@pytest.mark.parametrize("kind", list(named(ON_CLUSTER)))
def test_hostile_frames_get_typed_errors_and_change_nothing(
    cluster: FuzzCluster, kind: type[ClusterTarget]
) -> None:
    target = kind(cluster)
    batch = target.run(SEED)
    target.close()

    check(batch, kind.frames)


@pytest.mark.parametrize("kind", list(named(IN_SANDBOX)))
def test_hostile_files_and_ports_get_typed_errors(kind: type[SandboxTarget]) -> None:
    target = kind()
    try:
        batch = target.run(SEED)
    finally:
        target.close()

    check(batch, kind.frames)
