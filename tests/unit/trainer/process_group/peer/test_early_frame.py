import pytest

from gradmesh.trainer.process_group.message import MessageHeader, MessageKind
from gradmesh.trainer.process_group.peer.early_frame import EarlyFrame


def frame(nbytes: int) -> EarlyFrame:
    return EarlyFrame(MessageHeader(MessageKind.DATA, 0, nbytes, "send"))


def fill(early: EarlyFrame, data: bytes) -> None:
    """Let bytes arrive, as a link receives them."""
    at = 0
    while at < len(data):
        (room,) = early.grow()
        part = data[at : at + room.nbytes]
        room[: len(part)] = part
        early.arrived += len(part)
        at += len(part)


@pytest.mark.parametrize("announced", [2**31, 2**60])
def test_memory_grows_with_what_has_arrived(announced: int) -> None:
    early = frame(announced)

    sizes = []
    for _ in range(4):
        (room,) = early.grow()
        sizes.append(room.nbytes)
        early.arrived += room.nbytes

    assert sizes == [1 << 20, 1 << 20, 1 << 21, 1 << 22]


@pytest.mark.parametrize("count", [0, 1, 3 << 20, 5_000_001])
@pytest.mark.parametrize("cuts", [1, 3])
def test_what_has_arrived_is_copied_and_the_rest_is_left(count: int, cuts: int) -> None:
    whole = bytes(range(251)) * 20_000
    early = frame(len(whole))
    fill(early, whole[:count])
    target = bytearray(len(whole))
    view = memoryview(target)
    step = len(whole) // cuts + 1

    left = early.copy_to([view[at : at + step] for at in range(0, len(whole), step)])

    assert target[:count] == whole[:count]
    assert sum(part.nbytes for part in left) == len(whole) - count
    for part in left:
        part[:] = whole[len(whole) - sum(p.nbytes for p in left) :][: part.nbytes]
        left = left[1:]
    assert target == whole
