import contextlib
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from gradmesh.sdk.checkpoint.tensors import checksum_of, map_tensors, write_tensors

ARRAYS = {
    "ids": np.array([3, -1, 2**62]),
    "rows": np.arange(6, dtype=np.float32).reshape(3, 2),
    "half": np.ones((2, 2), np.float16),
    "none": np.empty((0, 4), np.float64),
    "marks": np.array([1, 2**32 - 1], np.uint32),
}


def test_other_implementations_read_our_output(tmp_path):
    with (tmp_path / "a").open("wb") as file:
        written = write_tensors(file, ARRAYS)

    found = load_file(tmp_path / "a")

    assert written == checksum_of(tmp_path / "a", written[0])
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_output_of_other_implementations_is_read(tmp_path):
    save_file(ARRAYS, tmp_path / "a", metadata={"format": "np"})

    found = map_tensors(tmp_path / "a")

    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_bfloat16_round_trips(tmp_path):
    rows = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    with (tmp_path / "a").open("wb") as file:
        write_tensors(file, {"rows": rows})

    found = map_tensors(tmp_path / "a")["rows"]

    assert found.dtype == rows.dtype
    assert found.tobytes() == rows.tobytes()


def test_type_that_the_format_lacks_is_refused(tmp_path):
    with (tmp_path / "a").open("wb") as file, pytest.raises(ValueError, match="complex128"):
        write_tensors(file, {"rows": np.ones(2, complex)})


def header(**entries) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        (2**40).to_bytes(8, "little") + b"{}",
        header()[:-1] + b"!",
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}) + bytes(8),
        header(a={"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}) + bytes(8),
        header(a={"shape": [2]}) + bytes(8),
        header(a=3),
        b"\x02\0\0\0\0\0\0\0[]",
    ],
)
def test_bad_file_is_a_value_error(tmp_path, data):
    (tmp_path / "a").write_bytes(data)

    with pytest.raises(ValueError, match="safetensors"):
        map_tensors(tmp_path / "a")


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_value_errors(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("noise") / "a"
    path.write_bytes(data)

    with contextlib.suppress(ValueError):
        map_tensors(path)
