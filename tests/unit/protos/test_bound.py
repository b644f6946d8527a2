import pytest

from gradmesh.protos.bound import Bound, Tally
from gradmesh.protos.errors import LimitExceeded

THINGS = Bound("things", 5, 3, "keep fewer")


def test_a_caller_and_all_together_are_bounded_and_get_back_what_they_release():
    tally = Tally(THINGS)
    tally.add("a", 3)

    with pytest.raises(LimitExceeded, match="things: 3 are kept for 'a' and the limit is 3; keep"):
        tally.check("a")
    tally.check("b", 2)
    tally.add("b", 2)
    with pytest.raises(LimitExceeded, match="things: 5 are kept in all and the limit is 5") as info:
        tally.check("c")

    assert info.value.metadata == {"limit": "things", "most": "5"}
    tally.remove("a", 3)
    tally.check("c", 3)
    assert (tally.total, tally.of("a"), tally.of("b")) == (2, 0, 2)
    assert not tally.is_low
    tally.remove("b")
    assert tally.is_low


def test_callers_without_a_name_share_the_total():
    tally = Tally(THINGS)
    tally.add("", 4)

    tally.check("")
    with pytest.raises(LimitExceeded, match="in all"):
        tally.check("", 2)
