import threading

import pytest

from gradmesh.trainer.process_group.store import FileStore, PrefixStore


def test_value_is_seen_by_another_store_of_the_folder(tmp_path):
    FileStore(tmp_path).set("a/b", b"value")

    assert FileStore(tmp_path).get("a/b", 1) == b"value"


def test_get_waits_for_the_value(tmp_path):
    store = FileStore(tmp_path)
    threading.Timer(0.05, store.set, ("late", b"1")).start()

    assert store.get("late", 10) == b"1"


def test_missing_value_ends_in_time(tmp_path):
    with pytest.raises(TimeoutError, match="never"):
        FileStore(tmp_path).get("never", 0.02)


def test_a_folder_may_be_a_str(tmp_path):
    FileStore(str(tmp_path)).set("key", b"value")

    assert FileStore(tmp_path).get("key", 1) == b"value"


def test_values_that_are_not_paths_are_refused():
    with pytest.raises(TypeError, match="str or Path, not int"):
        FileStore(3)


def test_prefixes_do_not_mix(tmp_path):
    whole = FileStore(tmp_path)
    one, two = PrefixStore(whole, "one"), PrefixStore(whole, "two")

    one.set("key", b"1")
    two.set("key", b"2")

    assert (one.get("key", 1), two.get("key", 1)) == (b"1", b"2")
    assert whole.get("one/key", 1) == b"1"
