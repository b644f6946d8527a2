"""Every format that is read, changed at random: only typed errors, bounded memory, no other file.

A failure prints its seed; FILE_FUZZ_SEEDS=17 repeats one, FILE_FUZZ_SEEDS=0:100000 runs more.
"""

import json
import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradmesh.launch.state import StateFolder
from gradmesh.sdk.checkpoint.manifest import MANIFEST, chain_of
from gradmesh.sdk.checkpoint.transfer import reader_for, writer_for
from gradmesh.sdk.process.config import load
from gradmesh.services.parameter_server.log import Log, Mode
from gradmesh.services.parameter_server.log.log import read_segment
from gradmesh.services.parameter_server.log.record import HEADER_BYTES, Pushed
from gradmesh.trainer.data.config import DataConfig
from gradmesh.trainer.data.encoder import Vocabulary
from gradmesh.trainer.data.npy import ArrayFolder
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.metrics_log import METRICS_FILE, read_metrics_log
from gradmesh.trainer.job.saved_model import load_model
from gradmesh.trainer.models import ModelConfig
from tests.security.hostile_files import (
    log_record,
    mutated,
    only_typed_errors,
    seal_text,
    tree_digest,
    write_checkpoint,
    write_model,
)

Case = tuple[Path, Callable[[bytes], None]]


def _seeds() -> range:
    first, _, end = os.environ.get("FILE_FUZZ_SEEDS", "0:150").partition(":")
    return range(int(first), int(end or int(first) + 1))


def _manifest(folder: Path) -> Case:
    made = write_checkpoint(folder / "a")

    def read(data: bytes) -> None:
        seal_text(made, data)
        chain_of(made)

    return made / MANIFEST, read


def _shard(folder: Path) -> Case:
    made = write_checkpoint(folder / "a")
    file = made / "user/0000-000000.safetensors"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        chain_of(made)

    return file, read


def _rows(ending: str) -> Callable[[Path], Case]:
    def make(folder: Path) -> Case:
        file = folder / f"rows.{ending}"
        with writer_for(file, file, 50, 4, np.dtype(np.float32)) as writer:
            writer.write(np.arange(50), np.ones((50, 4), np.float32))

        def read(data: bytes) -> None:
            file.write_bytes(data)
            reader = reader_for(file)
            assert sum(ids.size for ids, _ in reader.blocks(16)) <= reader.count

        return file, read

    return make


def _arrays(folder: Path) -> Case:
    np.save(folder / "ids.npy", np.arange(40).reshape(20, 2))
    np.save(folder / "labels.npy", np.ones(20, np.float32))

    def read(data: bytes) -> None:
        (folder / "ids.npy").write_bytes(data)
        ArrayFolder(folder)

    return folder / "ids.npy", read


def _words(folder: Path) -> Case:
    file = folder / "words.safetensors"
    Vocabulary([np.arange(20), np.arange(5)], 3).save(file)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        Vocabulary.load(file)

    return file, read


def _description(folder: Path) -> Case:
    model = write_model(folder / "model")

    def read(data: bytes) -> None:
        (model / "job.json").write_bytes(data)
        load_model(model)

    return model / "job.json", read


def _segment(folder: Path) -> Case:
    log = Log(folder / "log", Mode.OS, owner="ps-0")
    with log.append_lock:
        for number in range(1, 4):
            log.append(Pushed(("w", 1, number), ["t"]), [np.arange(4), np.ones((4, 2))])
    log.close()
    (file,) = (folder / "log").glob("log-*.records")

    def read(data: bytes) -> None:
        file.write_bytes(data)
        list(read_segment(file, 1, is_last=True))

    return file, read


def _forged_record(folder: Path) -> Case:
    file, read = _segment(folder)
    data = file.read_bytes()
    length, described = int.from_bytes(data[8:16], "little"), int.from_bytes(data[16:20], "little")
    body = data[HEADER_BYTES : HEADER_BYTES + length]
    file.write_bytes(body)

    def forge(changed: bytes) -> None:
        read(log_record(changed[:described], changed[described:]))

    return file, forge


def _settings(folder: Path) -> Case:
    file = folder / "job.toml"
    file.write_text('[job]\nsteps = 3\noutput = "x"\n[data]\nrows = [1, 2]\n[model]\ntop = [1]\n')

    def read(data: bytes) -> None:
        file.write_bytes(data)
        load([JobConfig, DataConfig, ModelConfig], file=file)

    return file, read


def _state(folder: Path) -> Case:
    state = StateFolder(folder)
    child = {"name": "a", "role": "worker", "state": "running", "restarts": 0, "pid": 1}
    state.write({"pid": 1, "address": "127.0.0.1:1", "ready": True, "children": [child]})

    def read(data: bytes) -> None:
        (folder / "cluster.json").write_bytes(data)
        state.read()
        state.supervisor_pid()

    return folder / "cluster.json", read


def _metrics(folder: Path) -> Case:
    file = folder / METRICS_FILE
    file.write_text("".join(json.dumps({"kind": "train", "step": n}) + "\n" for n in range(4)))

    def read(data: bytes) -> None:
        file.write_bytes(data)
        read_metrics_log(folder)

    return file, read


FORMATS: dict[str, Callable[[Path], Case]] = {
    "manifest": _manifest,
    "shard file": _shard,
    "safetensors": _rows("safetensors"),
    "npz": _rows("npz"),
    "npy": _arrays,
    "vocabulary": _words,
    "job.json": _description,
    "log": _segment,
    "record": _forged_record,
    "settings": _settings,
    "cluster.json": _state,
    "metrics.jsonl": _metrics,
}


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Let an allocation of gigabytes fail in this process."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_a_changed_file_raises_typed_errors_and_changes_nothing_else(
    tmp_path: Path, make: Callable[[Path], Case]
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "x").write_text("as it was")
    file, read = make(inside)
    whole = file.read_bytes()
    read(whole)
    before = tree_digest(outside), set(tmp_path.rglob("*"))

    for seed in _seeds():
        data = mutated(whole, random.Random(seed))
        with only_typed_errors(f"seed {seed}"):
            read(data)

    assert (tree_digest(outside), set(tmp_path.rglob("*"))) == before


def test_mutations_differ_and_are_repeatable() -> None:
    made: list[Any] = [mutated(b"x" * 100, random.Random(seed)) for seed in (1, 1, 2)]

    assert made[0] == made[1] != made[2]
