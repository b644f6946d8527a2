from gradmesh.protos.coordinator.v1 import membership_pb2, status_pb2
from gradmesh.sdk.cluster.status import ClusterStatus, MemberStatus, from_message


def trainer(name: str, **progress: float) -> status_pb2.MemberStatus:
    member = membership_pb2.Member(name=name, role=membership_pb2.ROLE_TRAINER, incarnation=1)
    return status_pb2.MemberStatus(
        member=member,
        progress=status_pb2.Progress(**progress) if progress else None,  # type: ignore[arg-type]
    )


def test_empty_cluster_has_no_progress() -> None:
    assert from_message(status_pb2.GetStatusResponse()) == ClusterStatus()


def test_slowest_trainer_of_the_newest_generation_counts() -> None:
    answer = status_pb2.GetStatusResponse(
        generation=3,
        members=[
            trainer(
                "a", generation=3, step=7, total_steps=9, loss=0.5, samples_per_s=10, bytes_moved=1
            ),
            trainer(
                "b", generation=3, step=6, total_steps=9, loss=0.6, samples_per_s=9, bytes_moved=2
            ),
            trainer("c", generation=2, step=1, total_steps=9, loss=0.7),
            trainer("d"),
        ],
    )

    status = from_message(answer)

    assert (status.step, status.total_steps, status.loss) == (6, 9, 0.5)
    assert (status.samples_per_s, status.bytes_moved) == (10, 3)


def test_members_are_described() -> None:
    member = membership_pb2.Member(
        name="ps", role=membership_pb2.ROLE_PARAMETER_SERVER, address="h:1", incarnation=4
    )
    answer = status_pb2.GetStatusResponse(
        members=[status_pb2.MemberStatus(member=member, silence_s=2.5)]
    )

    assert from_message(answer).members == (
        MemberStatus(
            name="ps", role="parameter-server", address="h:1", incarnation=4, silence_s=2.5
        ),
    )
