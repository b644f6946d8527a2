"""Checkpoints and row files: mutated, then restored into a mesh, which they must not disturb."""

from __future__ import annotations

import json
import random
import shutil
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gradmesh.engine import optim
from gradmesh.sdk.checkpoint.load import blocks_of, check_specs
from gradmesh.sdk.checkpoint.manifest import chain_of
from gradmesh.sdk.mesh.mesh import Mesh
from tests.conftest import Cluster
from tests.fuzz.cases import Case, Cases, judge, read_folder, write_folder
from tests.fuzz.hostile_json import DECOY, change_json, reseal
from tests.fuzz.mutation import mutate

_MANIFEST = "manifest.json"
_TENSORS = ".safetensors"
_ROW_FILES = ("rows.safetensors", "rows.npz") + ("rows.parquet",) * bool(find_spec("pyarrow"))
_IDS = np.arange(40)
_RESTORED = 0.1


class CheckpointCases(Cases):
    """Restores a full checkpoint and one that is based on it; imports files of rows."""

    def prepare(self) -> None:
        self._cluster = Cluster(parameter_servers=1)
        self._mesh: Mesh = self._cluster.connect()
        origin = self.folder / "origin"
        tables = [self._table("dense", 40), self._table("hash", None)]
        for table in tables:
            table.push(_IDS, np.ones((_IDS.size, 3), np.float32))
        names = [table.name for table in tables]
        self._mesh.checkpoint(origin / "full", tables=names)
        for table in tables:
            table.push(_IDS[:5], np.ones((5, 3), np.float32))
        self._mesh.checkpoint(origin / "delta", tables=names, base=origin / "full")
        self._kept = self._table("kept", 40)
        self._expected = self._kept.lookup(_IDS)
        (origin / "rows").mkdir()
        for name in _ROW_FILES:
            self._mesh.export_table(tables[0], origin / "rows" / name)
        self._files = read_folder(origin)
        self._decoy = str(self.folder / "case" / DECOY)
        self._trespass: list[str] = []
        sys.addaudithook(self._watch)

    def _table(self, name: str, rows: int | None) -> Any:
        return self._mesh.table(name, rows=rows, dim=3, optimizer=optim.Adagrad(lr=0.1))

    def _watch(self, event: str, arguments: Any) -> None:
        if event == "open" and isinstance(arguments[0], (str, Path)):
            path = str(arguments[0])
            if DECOY in path and str(Path(path).resolve()).startswith(self._decoy):
                self._trespass.append(path)

    def run(self, chance: random.Random) -> Case:
        files = dict(self._files)
        if chance.random() < 0.25:
            case = self._import_rows(chance, files)
        else:
            case = self._restore(chance, files)
        if self._trespass:
            return Case("trespass", f"opens {self._trespass[0]} outside of its folder", case.data)
        return case

    def _restore(self, chance: random.Random, files: dict[str, bytes]) -> Case:
        data = self._change(chance, files)
        folder = self._written(files) / "delta"
        try:
            if chance.random() < _RESTORED:
                self._mesh.restore(folder, timeout_s=20.0)
            else:
                self._read(folder)
        except BaseException as error:
            case = judge(error, data)
        else:
            case = Case("restored")
        if not np.array_equal(self._kept.lookup(_IDS), self._expected):
            return Case("changed", "another table has changed", data)
        return case

    def _read(self, folder: Path) -> None:
        """Read a checkpoint as a restore does, without sending it."""
        chain = chain_of(folder)
        check_specs(chain, [])
        for number in range(len(chain[-1][1].tables)):
            for block in blocks_of(chain, number):
                for array in block.values():
                    array.sum()

    def _change(self, chance: random.Random, files: dict[str, bytes]) -> bytes:
        """Make one file hostile, often with all checksums right; return its bytes."""
        folder = chance.choice(("full", "delta"))
        manifest = json.loads(files[f"{folder}/{_MANIFEST}"])
        how = chance.random()
        if how < 0.25:
            name = chance.choice([n for n in files if n.startswith(("full/", "delta/"))])
            files[name] = mutate(chance, files[name])
            return files[name]
        if how < 0.6:
            data = json.dumps(change_json(chance, manifest)).encode()
        else:
            described = chance.choice([f for t in manifest["tables"] for f in t["files"]])
            content = _change_tensors(chance, files[f"{folder}/{described['path']}"])
            files[f"{folder}/{described['path']}"] = content
            described["bytes"], described["crc32"] = len(content), zlib.crc32(content)
            data = json.dumps(manifest).encode()
        files[f"{folder}/{_MANIFEST}"] = data
        files[f"{folder}/COMPLETE"] = reseal(data)
        return data

    def _import_rows(self, chance: random.Random, files: dict[str, bytes]) -> Case:
        name = f"rows/{chance.choice(_ROW_FILES)}"
        data = files[name]
        data = _change_tensors(chance, data) if name.endswith(_TENSORS) else mutate(chance, data)
        path = self._written({name: data}) / name
        try:
            self._mesh.import_table(self._table("scratch", 40), path)
        except BaseException as error:
            return judge(error, data)
        return Case("imported")

    def _written(self, files: dict[str, bytes]) -> Path:
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        write_folder(folder, {**files, f"{DECOY}/secret": b"not yours"})
        self._trespass.clear()
        return folder

    def close(self) -> None:
        self._cluster.close()


def _change_tensors(chance: random.Random, data: bytes) -> bytes:
    """Return a safetensors file with a hostile header, or with mutated bytes."""
    if chance.random() < 0.3:
        return mutate(chance, data)
    length = int.from_bytes(data[:8], "little")
    header = change_json(chance, json.loads(data[8 : 8 + length]))
    text = json.dumps(header).encode()
    size = len(text) if chance.random() < 0.9 else chance.choice((0, 2**31, 2**63, length))
    return size.to_bytes(8, "little") + text + data[8 + length :]
