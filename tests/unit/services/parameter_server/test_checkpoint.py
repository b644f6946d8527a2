import pytest

from gradmesh.protos.errors import InvalidRequest, ShardNotReady, SnapshotLost
from gradmesh.services.parameter_server.checkpoint import Restores


def test_tables_are_closed_until_the_end():
    restores = Restores()

    restores.begin("one", ["user", "item"])

    with pytest.raises(ShardNotReady, match="being restored"):
        restores.check_open("user")
    restores.check_open("other")
    restores.check_own("one", "item")
    assert restores.end("one") == ("user", "item")
    restores.check_open("user")


def test_ending_twice_counts_once():
    restores = Restores()
    restores.begin("one", ["user"])

    assert restores.end("one") == ("user",)
    assert restores.end("one") == ()
    assert restores.has("one")


def test_a_newer_restore_replaces_the_older_one():
    restores = Restores()
    restores.begin("one", ["user", "item"])

    restores.begin("two", ["item"])

    with pytest.raises(SnapshotLost):
        restores.check_own("one", "user")
    with pytest.raises(SnapshotLost):
        restores.end("one")
    restores.check_own("two", "item")


@pytest.mark.parametrize(("name", "tables"), [("", ["user"]), ("one", [])])
def test_restore_without_name_or_tables_is_refused(name, tables):
    with pytest.raises(InvalidRequest):
        Restores().begin(name, tables)
