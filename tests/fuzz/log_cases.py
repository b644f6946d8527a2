"""The log of a parameter server: mutated files, from which a server recovers or says why not."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from gradmesh.services.parameter_server.log import Log, Mode
from gradmesh.services.parameter_server.log.record import HEADER_BYTES, MAGIC, read_header
from gradmesh.services.parameter_server.log.recovery import recover
from gradmesh.services.parameter_server.log.snapshot import take_snapshot
from gradmesh.services.parameter_server.store import TableStore
from tests.fuzz.cases import Case, Cases, judge, read_folder, write_folder
from tests.fuzz.hostile_json import change_json, reseal
from tests.fuzz.mutation import mutate
from tests.unit.services.parameter_server.conftest import Make
from tests.unit.services.parameter_server.log.server import Server, specs

_CHECKED = struct.Struct("<QIQI")
_SUFFIX = ".records"
_MAX_BYTES = 1 << 26
# Stores have cycles, and reserve memory.
_COLLECT_EVERY = 10


class LogCases(Cases):
    """Recovers from two logs, one of which begins with a snapshot."""

    address_space: ClassVar[int] = 128 << 30

    def prepare(self) -> None:
        self._recovered = 0
        plain = self._write(self.folder / "plain", snapshot=False)
        self._logs = [plain, self._write(self.folder / "snapshot", snapshot=True)]
        self._before = self._prefixes(plain)

    def _write(self, folder: Path, *, snapshot: bool) -> dict[str, bytes]:
        """Return the files of a log with all kinds of records that a store writes by itself."""
        server = Server(Make, folder)
        for round_ in range(3):
            for spec in specs(Make):
                server.push(spec.name, [1, 2, 3 + round_], 0.5)
                server.contribute(spec.name, [4, 5 + round_], 0.25)
            if snapshot and round_ == 1:
                take_snapshot(server.store)
        server.close()
        return read_folder(folder)

    def _prefixes(self, files: dict[str, bytes]) -> set[str]:
        """Return the digest of the state after each record."""
        found = set()
        names = sorted(name for name in files if name.endswith(_SUFFIX))
        for index, name in enumerate(names):
            for end in [0, *_ends(files[name])]:
                kept = {n: data for n, data in files.items() if n not in names[index + 1 :]}
                kept[name] = files[name][:end]
                _, digest = self._recover(kept)
                found.add(digest)
        return found

    def run(self, chance: random.Random) -> Case:
        files = dict(chance.choice(self._logs))
        name = chance.choice(sorted(files))
        data = files[name]
        how = chance.random()
        is_believed = how < 0.6
        if is_believed and name.endswith(_SUFFIX):
            data = _change_record(chance, data)
        elif is_believed and name.endswith("manifest.json"):
            folder = name.rpartition("/")[0]
            data = json.dumps(change_json(chance, json.loads(data))).encode()
            files[f"{folder}/COMPLETE"] = reseal(data)
        else:
            is_believed = False
            data = mutate(chance, data, chance.choice(list(files.values())))
        files[name] = data
        if chance.random() < 0.05:
            files[chance.choice(("log-x.records", "log--1.records", "snapshot-x/a"))] = b"x"
        try:
            records, digest = self._recover(files)
        except BaseException as error:
            return judge(error, data)
        # A changed byte never passes a checksum, so the state is one that the server had before.
        if not is_believed and digest not in self._before:
            return Case("invented", f"{name}: {records} records make a state that never was", data)
        return Case("recovered")

    def _recover(self, files: dict[str, bytes]) -> tuple[int, str]:
        """Recover a store from files; return the number of records and a digest of the state."""
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        write_folder(folder, files)
        log = Log(folder, Mode.OS, owner="ps-0")
        try:
            store: TableStore = Make.store(*specs(Make), max_bytes=_MAX_BYTES, log=log)
            records = recover(store)
            return records, _digest(store)
        finally:
            log.close()
            self._recovered += 1
            if self._recovered % _COLLECT_EVERY == 0:
                gc.collect()


def _digest(store: TableStore) -> str:
    """Return a digest of all rows, with their optimizer state."""
    made = hashlib.sha256()
    for table in sorted(store.tables(), key=lambda table: table.spec.name):
        made.update(f"{table.spec.name} {table.steps}".encode())
        for ids, rows, state in table.blocks():
            order = np.argsort(ids)
            for array in (ids, rows, *(state[name] for name in sorted(state))):
                made.update(array[order].tobytes())
    return made.hexdigest()


def _ends(data: bytes) -> list[int]:
    """Return where the records of a segment end."""
    ends, at = [], 0
    while at < len(data):
        header = read_header(data[at : at + HEADER_BYTES])
        assert header is not None
        at += HEADER_BYTES + header.length
        ends.append(at)
    return ends


def _change_record(chance: random.Random, data: bytes) -> bytes:
    """Return a segment of which one record has hostile contents and right checksums."""
    ends = [0, *_ends(data)]
    if len(ends) < 2:
        return data
    index = chance.randrange(len(ends) - 1)
    begin, end = ends[index], ends[index + 1]
    header = read_header(data[begin : begin + HEADER_BYTES])
    assert header is not None
    body = data[begin + HEADER_BYTES : end]
    described, arrays = body[: header.described], body[header.described :]
    if chance.random() < 0.7:
        described = _change_description(chance, described)
    else:
        described = mutate(chance, described)
    if chance.random() < 0.3:
        arrays = mutate(chance, arrays)
    length, number = len(described), header.number
    if chance.random() < 0.1:
        length = chance.choice((0, len(described + arrays), 2**31))
    if chance.random() < 0.05:
        number = chance.choice((0, number + 1, 2**64 - 1))
    body = described + arrays
    checked = _CHECKED.pack(len(body), length, number, zlib.crc32(body))
    record = struct.pack("<II", MAGIC, zlib.crc32(checked)) + checked + body
    return data[:begin] + record + data[end:]


def _change_description(chance: random.Random, described: bytes) -> bytes:
    value: Any = msgspec.msgpack.decode(described)
    try:
        return msgspec.msgpack.encode(change_json(chance, value))
    except (OverflowError, UnicodeEncodeError):
        return mutate(chance, described)
