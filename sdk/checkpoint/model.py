"""Export of a checkpoint's whole model to one safetensors file, readable without gradmesh.

Parameters and buffers keep torch's names. A table of fixed rows is one matrix, as the weight of an
embedding layer; a hash table is its ids and its rows, sorted by id.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.sdk.checkpoint.load import blocks_of
from gradmesh.sdk.checkpoint.manifest import Manifest, chain_of
from gradmesh.sdk.checkpoint.tensors import map_tensors, write_tensors
from gradmesh.sdk.table.recipe import initializer_of, table_seed
from gradmesh.sdk.table.spec import wide_dtype

MODEL = "model."
"""Prefix of the names of parameters and buffers in a checkpoint."""


def export_model(folder: Path, file: Path) -> list[str]:
    """Write the parameters and tables of a checkpoint to a safetensors file.

    Args:
        folder: The checkpoint; verified first.
        file: Appears when it is complete; must not exist.

    Returns:
        The names in the file.

    Raises:
        CheckpointCorrupt: The checkpoint is incomplete or damaged.
        InvalidRequest: The file exists, or the tables do not fit into memory.
    """
    if file.exists():
        raise InvalidRequest(f"{file} exists; remove it or choose another name", path=file)
    arrays = model_arrays(chain_of(folder.absolute()))
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("wb") as out:
            write_tensors(out, arrays)
            out.flush()
            os.fsync(out.fileno())
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)
    return list(arrays)


def model_arrays(chain: Sequence[tuple[Path, Manifest]]) -> dict[str, Array]:
    """Return parameters, buffers and tables of a verified chain, by name."""
    folder, manifest = chain[-1]
    found: dict[str, Array] = {}
    if manifest.run is not None:
        dense = map_tensors(manifest.run.dense.inside(folder))
        found = {n.removeprefix(MODEL): a for n, a in dense.items() if n.startswith(MODEL)}
    for number, files in enumerate(manifest.tables):
        spec, name = files.table, f"embeddings.{files.table.name}"
        if spec.kind == table_pb2.TABLE_KIND_HASH:
            ids, rows = _sparse_rows(chain, number, spec)
            found |= {f"{name}.ids": ids, f"{name}.weight": rows}
        else:
            found[f"{name}.weight"] = _all_rows(chain, number, spec)
    return found


def _all_rows(
    chain: Sequence[tuple[Path, Manifest]], number: int, spec: table_pb2.TableSpec
) -> Array:
    """Return the rows of a dense table; unused ones have their initial values.

    Raises:
        InvalidRequest: They do not fit into memory: a small file may describe a big table.
    """
    dtype = numpy_dtype(spec.dtype)
    size = spec.rows * spec.dim * (dtype.itemsize + wide_dtype(dtype).itemsize)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise InvalidRequest(
            f"table {spec.name!r} needs {size:,} bytes with its unused rows, and this machine has "
            f"{memory:,}; restore the checkpoint, and export its used rows with "
            "`gradmesh table export`",
            table=spec.name,
        )
    wide = np.empty((spec.rows, spec.dim), wide_dtype(dtype))
    initializer_of(spec.initializer).fill(wide, np.arange(spec.rows), table_seed(spec))
    rows: Array = wide.astype(dtype, copy=False)
    for block in blocks_of(chain, number):
        if "ids" in block:
            rows[block["ids"]] = block["rows"]
    return rows


def _sparse_rows(
    chain: Sequence[tuple[Path, Manifest]], number: int, spec: table_pb2.TableSpec
) -> tuple[Array, Array]:
    blocks = [block for block in blocks_of(chain, number) if "ids" in block]
    if not blocks:
        return np.empty(0, np.int64), np.empty((0, spec.dim), numpy_dtype(spec.dtype))
    # The last version of a row is used.
    ids = np.concatenate([block["ids"] for block in blocks])[::-1]
    rows = np.concatenate([block["rows"] for block in blocks])[::-1]
    unique, positions = np.unique(ids, return_index=True)
    return unique, rows[positions]
