import os
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


@pytest.mark.parametrize("key", ["..", "../outside", "/etc/hosts", ".", "a" * 500, "a\0b", "ä"])
def test_every_key_is_a_file_of_the_folder(tmp_path, key):
    folder = tmp_path / "store"
    store = FileStore(folder)

    store.set(key, b"value")

    assert store.get(key, 1) == b"value"
    assert [path.parent for path in tmp_path.rglob("*.value")] == [folder]


def test_similar_keys_do_not_mix(tmp_path):
    store = FileStore(tmp_path)
    store.set("a/b", b"1")
    store.set("a.b", b"2")

    assert (store.get("a/b", 1), store.get("a.b", 1)) == (b"1", b"2")


def test_only_the_user_reads_values(tmp_path):
    folder = tmp_path / "new"
    FileStore(folder).set("secret", b"value")

    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_not_a_file_of_this_user_is_not_read(tmp_path, kind):
    store = FileStore(tmp_path)
    path = tmp_path / "key.value"
    if kind == "link":
        (tmp_path / "target").write_bytes(b"forged")
        path.symlink_to(tmp_path / "target")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()

    with pytest.raises(OSError, match=r"key\.value|symbolic link"):
        store.get("key", 0.1)
