"""Files as an attacker writes them: valid in form, with checksums that are right."""

import contextlib
import hashlib
import json
import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gradmesh.base_error import GradmeshError
from gradmesh.engine import optim
from gradmesh.protos.sharding import BUCKETS
from gradmesh.sdk.checkpoint.manifest import COMPLETE, MANIFEST, Manifest, TableFiles
from gradmesh.sdk.checkpoint.save import write_file
from gradmesh.sdk.checkpoint.table_content import spec_dict
from gradmesh.sdk.checkpoint.tensors import write_tensors
from gradmesh.sdk.table.spec import make_spec
from gradmesh.services.parameter_server.log.record import MAGIC
from gradmesh.trainer.job.spec import JobSpec

Change = Callable[[dict[str, Any]], object]


def table_spec(name: str = "user", rows: int | None = 100, dim: int = 4) -> Any:
    return make_spec(
        name,
        rows,
        dim,
        optim.SGD(lr=0.1),
        schedule=None,
        initializer=None,
        seed=1,
        dtype=np.float32,
        admission=None,
        eviction=None,
        max_bytes=0,
        bad_gradients=None,
        hot_bytes=0,
    )


def seal_text(folder: Path, text: bytes) -> None:
    """Write a manifest and its checksum; the text need not be JSON."""
    (folder / MANIFEST).write_bytes(text)
    (folder / COMPLETE).write_text(f"sha256 {hashlib.sha256(text).hexdigest()} {MANIFEST}\n")


def seal_again(folder: Path, change: Change) -> None:
    """Change the manifest of a checkpoint, with the right checksum."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    seal_text(folder, json.dumps(manifest).encode())


def write_checkpoint(
    folder: Path, arrays: dict[str, Any] | None = None, change: Change = lambda manifest: None
) -> Path:
    """Write a checkpoint of one table as a server's client does, then change its manifest."""
    (folder / "user").mkdir(parents=True)
    block = arrays or {"ids": np.arange(5), "rows": np.ones((5, 4), np.float32)}
    file = write_file(folder, "user/0000-000000.safetensors", block)
    manifest = Manifest(
        format=1,
        id=hashlib.md5(folder.name.encode()).hexdigest(),
        created=1.0,
        generation=0,
        step=0,
        base=None,
        servers=["ps-0"],
        bucket_shards=[0] * BUCKETS,
        tables=[TableFiles(spec_dict(table_spec()), [0], [file])],
    )
    seal_text(folder, json.dumps(msgspec.to_builtins(manifest)).encode())
    seal_again(folder, change)
    return folder


def write_model(folder: Path, name: str = "dlrm", **changes: Any) -> Path:
    """Write the folder of a model with one categorical feature."""
    settings = JobSpec().as_dict()
    settings["model"]["name"] = name
    fields = {"dense_features": 2, "rows": [100], "hots": None}
    write_checkpoint(
        folder / "tables",
        change=lambda m: m["tables"][0].update(
            spec={**m["tables"][0]["spec"], "name": "feature-0"}
        ),
    )
    with (folder / "dense.safetensors").open("wb") as file:
        write_tensors(file, {"top.0.weight": np.ones((2, 2), np.float32)})
    content = {"gradmesh": "0", "settings": settings, "fields": fields, **changes}
    (folder / "job.json").write_text(json.dumps(content))
    return folder


def log_record(described: bytes, arrays: bytes = b"", number: int = 1) -> bytes:
    """Return a record of a log with the right checksums."""
    body = described + arrays
    checked = struct.pack("<QIQI", len(body), len(described), number, zlib.crc32(body))
    return struct.pack("<II", MAGIC, zlib.crc32(checked)) + checked + body


def log_description(record: Any, arrays: Any = ()) -> bytes:
    """Return the description in a record."""
    return msgspec.msgpack.encode({"record": record, "arrays": arrays})


def tree_digest(*folders: Path) -> dict[str, str]:
    """Return a digest of every file below some folders."""
    return {
        str(path): "link " + os.readlink(path)
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@contextlib.contextmanager
def only_typed_errors(about: str) -> Iterator[None]:
    """Let errors of the public tree pass; any other is a failure."""
    try:
        yield
    except GradmeshError:
        return
    except BaseException as error:
        error.add_note(about)
        raise


_HOSTILE = (
    b"\xff" * 8,
    b"\x00" * 8,
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"[" * 64,
    b"{" * 64,
    b"99999999999999999999",
    b"-1",
    b"../../x",
    b"/etc/passwd",
    b'"',
    b"\x00",
    b"1e999",
    b"null",
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with a few changes: bits, pieces cut, repeated or replaced by hostile ones."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at : at + chance.randint(1, 64)]
        elif kind == 2:
            found[at:at] = found[at : at + chance.randint(1, 64)]
        elif kind == 3:
            some = chance.choice(_HOSTILE)
            found[at : at + len(some)] = some
        else:
            found[at:at] = chance.choice(_HOSTILE)
    return bytes(found)
