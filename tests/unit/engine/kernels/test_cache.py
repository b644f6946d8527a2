"""The cache of compiled kernels, under processes that compile at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradmesh.engine.kernels.cache import KernelFiles


def files(folder: Path, stamp: object = (1, 2)) -> KernelFiles:
    return KernelFiles(str(folder), "kernel.total-3.py311", stamp)


def test_writers_at_the_same_time_keep_their_signatures_apart(tmp_path):
    one, other = files(tmp_path), files(tmp_path)

    one.save(("float32", "cpu"), "code for float32")
    other.save(("int64", "cpu"), "code for int64")

    assert files(tmp_path).load(("float32", "cpu")) == "code for float32"
    assert files(tmp_path).load(("int64", "cpu")) == "code for int64"
    assert files(tmp_path).load(("int32", "cpu")) is None


def test_code_of_an_older_source_is_not_loaded_and_is_removed(tmp_path):
    files(tmp_path, stamp="old").save("key", "old code")
    assert files(tmp_path, stamp="new").load("key") is None

    files(tmp_path, stamp="new").save("other key", "new code")

    assert files(tmp_path, stamp="old").load("key") is None
    assert files(tmp_path, stamp="new").load("other key") == "new code"


def test_flush_removes_all_signatures(tmp_path):
    some = files(tmp_path)
    some.save("key", "code")

    some.flush()

    assert some.load("key") is None


# Each process begins with another type, so that they compile different signatures at once.
COMPILE = """
import sys
import numpy as np
from gradmesh.trainer.process_group.shm import kernel

first, types = int(sys.argv[1]), sorted(kernel.COMPILED, key=str)
for dtype in types[first:] + types[:first]:
    parts = np.arange(8, dtype=dtype).reshape(2, 4)
    out = np.zeros(kernel.BLOCK, dtype)
    addresses = np.array([row.ctypes.data for row in parts], np.int64)
    kernel.total(addresses[:0], addresses[:0], 0, 1, out)
kernel.warm_up()
print("warm")
"""


@pytest.mark.timeout(600)
def test_processes_that_compile_at_once_all_succeed_and_so_do_later_ones(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def started(first: int) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(first)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    at_once = [started(first) for first in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in at_once]
    outputs.append(started(0).communicate(timeout=120)[0])

    assert outputs == ["warm\n"] * 4
    assert list(tmp_path.rglob("*.nbc"))
    assert not list(tmp_path.rglob("*.nbi"))
