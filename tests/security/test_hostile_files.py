"""Checkpoints, model folders, exports and logs of an attacker: typed errors, nothing outside."""

import hashlib
import json
import os
import struct
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest

from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint.manifest import (
    COMPLETE,
    DENSE,
    MANIFEST,
    chain_of,
    read_manifest,
)
from gradmesh.sdk.checkpoint.row_files import NpzReader
from gradmesh.sdk.checkpoint.store import open_store
from gradmesh.sdk.checkpoint.tensors import map_tensors, parse_tensors
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.services.parameter_server.log.log import LogCorrupt, path_of, read_segment
from gradmesh.trainer.data.encoder import Vocabulary
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.job.config import JobConfig
from tests.own_process import peak_bytes
from tests.security.hostile_files import (
    log_description,
    log_record,
    seal_text,
    tree_digest,
    write_checkpoint,
)

OUTSIDE = (
    "../outside.safetensors",
    "../../outside.safetensors",
    "user/../../outside.safetensors",
    "/etc/hostname",
    "C:/outside.safetensors",
    "file:///etc/hostname",
    "user\\..\\outside",
    "user/\x00",
    "user/\x1b[2J",
    "user//0000-000000.safetensors",
    "./user/0000-000000.safetensors",
    "nul",
    "user/COM1.safetensors",
    "",
    "a" * 5000,
)


def _file(manifest: dict[str, Any]) -> Any:
    return manifest["tables"][0]["files"][0]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_manifest_names_only_files_of_its_folder(tmp_path: Path, path: str) -> None:
    folder = write_checkpoint(tmp_path / "a", change=lambda m: _file(m).update(path=path))

    with pytest.raises(CheckpointCorrupt):
        chain_of(folder)


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_restore_from_a_url_writes_nothing_outside(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{uuid.uuid4().hex}/x"
    url, files = f"memory://{place}", fsspec.filesystem("memory")
    write_checkpoint(tmp_path / "a", change=lambda m: _file(m).update(path=path))
    for name in (MANIFEST, COMPLETE):
        files.pipe_file(f"/{place}/a/{name}", (tmp_path / "a" / name).read_bytes())
    for above in (f"/{place}", f"/{place}".removesuffix("/x")):
        files.pipe_file(f"{above}/outside.safetensors", b"content")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = open_store(url)
    before = tree_digest(tmp_path)

    with pytest.raises(CheckpointCorrupt):
        store.fetch(store.find("a"))

    assert tree_digest(tmp_path) == before
    store.close()


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "a")
    file = folder / "user/0000-000000.safetensors"
    file.rename(tmp_path / "secret.safetensors")
    file.symlink_to(tmp_path / "secret.safetensors")

    with pytest.raises(CheckpointCorrupt, match="symbolic link"):
        chain_of(folder)


def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "a")
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    other = write_checkpoint(tmp_path / "b")
    (other / "user/0000-000000.safetensors").unlink()
    os.mkfifo(other / "user/0000-000000.safetensors")

    for one in (folder, other):
        with pytest.raises(CheckpointCorrupt):
            chain_of(one)


def _base_of(name: str, path: str) -> Callable[[dict[str, Any]], object]:
    other = hashlib.md5(name.encode()).hexdigest()
    return lambda manifest: manifest.update(base={"id": other, "path": path})


def test_a_chain_that_has_no_end_is_refused(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a"), ("self", "self")):
        write_checkpoint(tmp_path / name, change=_base_of(other, f"../{other}"))

    for name in ("a", "self"):
        with pytest.raises(CheckpointCorrupt, match="based on itself"):
            chain_of(tmp_path / name)


def test_a_chain_at_a_url_that_has_no_end_is_refused(tmp_path: Path) -> None:
    place = f"{uuid.uuid4().hex}/x"
    files = fsspec.filesystem("memory")
    for name, other in (("a", "b"), ("b", "a")):
        folder = write_checkpoint(tmp_path / name, change=_base_of(other, f"../{other}"))
        for file in folder.rglob("*"):
            if file.is_file():
                files.pipe_file(f"/{place}/{file.relative_to(tmp_path)}", file.read_bytes())
    store = open_store(f"memory://{place}")

    with pytest.raises(CheckpointCorrupt, match="based on itself"):
        store.fetch(store.find("a"))
    store.close()


@pytest.mark.parametrize("path", ["../../b", "/b", ".", "..", "b", "../b/../../c", "../\x00"])
def test_a_base_is_beside_the_checkpoint(tmp_path: Path, path: str) -> None:
    write_checkpoint(tmp_path / "b")
    folder = write_checkpoint(tmp_path / "in/a", change=_base_of("b", path))

    with pytest.raises(CheckpointCorrupt):
        chain_of(folder)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "negative bytes": lambda m: _file(m).update(bytes=-1),
    "huge rows": lambda m: _file(m).update(rows=2**70),
    "other rows": lambda m: _file(m).update(rows=4),
    "no steps": lambda m: m["tables"][0].update(steps=[]),
    "year 10^300": lambda m: m.update(created=1e300),
    "no such server": lambda m: m.update(bucket_shards=[7]),
    "unknown field of a table": lambda m: m["tables"][0]["spec"].update(colour="red"),
    "wrong type in a table": lambda m: m["tables"][0]["spec"].update(rows={"a": 1}),
    "rows beyond limits": lambda m: m["tables"][0]["spec"].update(rows=str(2**60)),
    "dim beyond limits": lambda m: m["tables"][0]["spec"].update(dim=2**31),
    "name with an escape": lambda m: m["tables"][0]["spec"].update(name="\x1b[2J"),
    "unknown optimizer": lambda m: m["tables"][0]["spec"]["optimizer"].update(name="os"),
    "a table twice": lambda m: m["tables"].append(m["tables"][0]),
    "a file twice": lambda m: m["tables"][0]["files"].append(_file(m)),
    "id with an escape": lambda m: m.update(id="\x1b[2J"),
    "tables of another type": lambda m: m.update(tables={"a": 1}),
    "a missing field": lambda m: m.pop("servers"),
    "dense elsewhere": lambda m: m.update(
        run={"world_size": 1, "batches": 1, "settings": {}, "dense": {**_file(m), "path": "user/x"}}
    ),
    "nested settings": lambda m: m.update(
        run={
            "world_size": 1,
            "batches": 1,
            "settings": json.loads('{"a":' * 200 + "1" + "}" * 200),
            "dense": {**_file(m), "path": DENSE},
        }
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_field_with_an_impossible_value_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = write_checkpoint(tmp_path / "a", change=change)

    with pytest.raises(CheckpointCorrupt, match=str(tmp_path)):
        chain_of(folder)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"", b"null", b"{}", b'{"format": 1}']
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    seal_text(tmp_path, text)

    with pytest.raises(CheckpointCorrupt):
        read_manifest(tmp_path)


def test_a_manifest_of_any_size_takes_bounded_memory(
    tmp_path: Path, in_own_process: Callable[..., Any]
) -> None:
    for name in (MANIFEST, COMPLETE):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)

    assert in_own_process(_peak_of_manifest, str(tmp_path)) < 64 << 20


def _peak_of_manifest(folder: str) -> int:
    def read() -> None:
        with pytest.raises(CheckpointCorrupt):
            read_manifest(Path(folder))

    return peak_bytes(read)


BLOCKS: dict[str, dict[str, Any]] = {
    "an id below the rows": {"ids": np.array([-1]), "rows": np.ones((1, 4), np.float32)},
    "an id beyond the rows": {"ids": np.array([100]), "rows": np.ones((1, 4), np.float32)},
    "rows of another dim": {"ids": np.arange(2), "rows": np.ones((2, 5), np.float32)},
    "fewer rows": {"ids": np.arange(2), "rows": np.ones((1, 4), np.float32)},
    "rows alone": {"rows": np.ones((1, 4), np.float32)},
    "ids in a matrix": {"ids": np.ones((2, 2), np.int64), "rows": np.ones((2, 4), np.float32)},
    "ids that are no numbers": {"ids": np.ones(2), "rows": np.ones((2, 4), np.float32)},
    "other elements": {"ids": np.arange(2), "rows": np.ones((2, 4), np.float64)},
    "a bucket beyond all": {"buckets": np.array([1 << 20]), "clocks": np.ones(1, np.uint32)},
    "a bucket below 0": {"buckets": np.array([-1]), "clocks": np.ones(1, np.uint32)},
    "fewer marks": {
        "ids": np.arange(2),
        "rows": np.ones((2, 4), np.float32),
        "marks": np.ones(1, np.uint32),
    },
    "an unknown array": {
        "ids": np.arange(1),
        "rows": np.ones((1, 4), np.float32),
        "other": np.ones(3),
    },
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_restore_of_what_no_table_holds_changes_nothing(
    tmp_path: Path, cluster: Any, block: dict[str, Any]
) -> None:
    mesh = cluster.connect()
    folder = write_checkpoint(tmp_path / "a", block)

    with pytest.raises(CheckpointCorrupt, match="user/0000"):
        mesh.restore(folder)

    assert mesh.connection.coordinator.list_tables(mesh.connection.deadline()) == []


def _header(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def _entry(shape: Any, begin: Any, end: Any, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "a deep one": (70_000).to_bytes(8, "little") + b"[" * 70_000,
    "longer than the file": (2**63).to_bytes(8, "little"),
    "bytes shared by two": _header(a=_entry([4], 0, 4), b=_entry([4], 0, 4)) + bytes(4),
    "a hole": _header(a=_entry([1], 3, 4)) + bytes(4),
    "more at the end": _header(a=_entry([1], 0, 1)) + bytes(4),
    "below 0": _header(a=_entry([-1, -4], 0, 4)) + bytes(4),
    "a fraction": _header(a=_entry([4.0], 0, 4)) + bytes(4),
    "true": _header(a=_entry([True], 0, 1)) + bytes(1),
    "many axes": _header(a=_entry([1] * 100_000, 0, 1)) + bytes(1),
    "no rows of endless ones": _header(a=_entry([0, 2**62, 2**62], 0, 0)),
    "a shape of text": _header(a=_entry("4", 0, 4)) + bytes(4),
    "a type of a list": _header(a=_entry([4], 0, 4, ["U8"])) + bytes(4),
    "metadata of numbers": _header(__metadata__={"a": 1}),
    "a name twice": (lambda t: len(t).to_bytes(8, "little") + t)(b'{"a":{},"a":{}}'),
    "digits without end": (lambda t: len(t).to_bytes(8, "little") + t)(
        b'{"a":{"dtype":"U8","shape":[' + b"9" * 9000 + b'],"data_offsets":[0,1]}}'
    ),
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS)
def test_a_hostile_safetensors_header_is_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)

    with pytest.raises(ValueError, match="safetensors"):
        map_tensors(tmp_path / "a")
    with pytest.raises(ValueError, match="safetensors"):
        parse_tensors(data)
    with pytest.raises(DataError):
        Vocabulary.load(tmp_path / "a")


def _npy(descr: str, shape: str, data: bytes = b"", length: int | None = None) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = len(text) if length is None else length
    return b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little") + text + data


IDS = _npy("'<i8'", "(2,)", np.arange(2).tobytes())
ROWS = _npy("'<f4'", "(2, 4)", bytes(32))


def _zip(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


NPZ = {
    "a header of 1 GiB": {"ids": _npy("'<i8'", "(2,)", bytes(1 << 30), 1 << 30), "rows": ROWS},
    "more rows than bytes": {
        "ids": _npy("'<i8'", "(1000000000000,)"),
        "rows": _npy("'<f4'", "(1000000000000, 4)"),
    },
    "rows wider than memory": {"ids": IDS, "rows": _npy("'<f4'", "(2, 1000000000000000)")},
    "pickled objects": {"ids": _npy("'|O'", "(2,)", bytes(16)), "rows": ROWS},
    "fields": {"ids": _npy("[('a', '<i8')]", "(2,)", bytes(16)), "rows": ROWS},
    "deep": {"ids": _npy("-" * 3000 + "1", "(2,)"), "rows": ROWS},
    "below 0": {"ids": _npy("'<i8'", "(-2,)"), "rows": ROWS},
    "no magic": {"ids": b"PK", "rows": ROWS},
    "no rows": {"ids": IDS},
}


@pytest.mark.parametrize("members", NPZ.values(), ids=NPZ)
def test_a_hostile_npz_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    with pytest.raises(InvalidRequest, match="not a file of ids and rows"):
        NpzReader(_zip(tmp_path / "a.npz", **members))


def test_an_npz_by_another_method_is_refused(tmp_path: Path) -> None:
    path = _zip(tmp_path / "a.npz", zipfile.ZIP_LZMA, ids=IDS, rows=ROWS)

    with pytest.raises(InvalidRequest, match="use deflate"):
        NpzReader(path)


def test_a_zip_bomb_takes_bounded_memory(
    tmp_path: Path, in_own_process: Callable[..., Any]
) -> None:
    count = 1 << 27
    with zipfile.ZipFile(tmp_path / "ids.npz", "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("ids.npy", "w", force_zip64=True) as member:
            member.write(_npy("'<i8'", f"({count},)"))
            for _ in range(count * 8 >> 24):
                member.write(bytes(1 << 24))
        file.writestr("rows.npy", ROWS)
    head = _zip(tmp_path / "head.npz", **NPZ["a header of 1 GiB"])
    # An end record whose directory is the whole rest of a sparse file.
    directory = tmp_path / "directory.npz"
    with directory.open("wb") as file:
        file.truncate(0xFFFF0000)
        file.seek(0, os.SEEK_END)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 0xFFFF0000, 0, 0))

    for path in (tmp_path / "ids.npz", head, directory):
        assert in_own_process(_peak_of_npz, str(path)) < 64 << 20


def _peak_of_npz(path: str) -> int:
    def read() -> None:
        with pytest.raises(InvalidRequest):
            NpzReader(Path(path))

    return peak_bytes(read)


USED = {"type": "Used", "table": "t"}
RECORDS = {
    "no description": log_record(b""),
    "noise": log_record(os.urandom(50)),
    "deep": log_record(b"\x91" * 100_000),
    "an unknown record": log_record(log_description({"type": "Exec"})),
    "an unknown field": log_record(log_description({**USED, "more": 1})),
    "an object": log_record(log_description(USED, [("|O", (1,))]), bytes(8)),
    "no such type": log_record(log_description(USED, [("<f3", (1,))]), bytes(8)),
    "a type of fields": log_record(log_description(USED, [("i4,i4", (1,))]), bytes(8)),
    "more than there is": log_record(log_description(USED, [("<i8", (1 << 40,))]), bytes(8)),
    "below 0": log_record(log_description(USED, [("<i8", (-1,))]), bytes(8)),
    "two below 0": log_record(log_description(USED, [("<i8", (-1, -1))]), bytes(8)),
    "axes without end": log_record(log_description(USED, [("<i8", (1,) * 1000)]), bytes(8)),
    "more at the end": log_record(log_description(USED, [("<i8", (1,))]), bytes(9)),
}


@pytest.mark.parametrize("data", RECORDS.values(), ids=RECORDS)
def test_a_forged_log_record_is_named(tmp_path: Path, data: bytes) -> None:
    path = path_of(tmp_path, 1)
    path.write_bytes(data)

    with pytest.raises(LogCorrupt, match="record 1 at byte 0"):
        list(read_segment(path, 1, is_last=True))
    assert path.read_bytes() == data


TOML = {
    "dots": "a." * 50_000 + "a = 1",
    "lists": "a = " + "[" * 10_000 + "]" * 10_000,
    "tables": "a = " + "{a = " * 300 + "1" + "}" * 300,
    "size": "#" * (1 << 20),
}


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_a_hostile_settings_file_is_a_config_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.toml").write_text(text)

    with pytest.raises(ConfigError, match=r"job\.toml"):
        load([JobConfig], file=tmp_path / "job.toml")
