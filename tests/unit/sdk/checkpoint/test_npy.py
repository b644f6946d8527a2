"""Arrays of numpy's format, mapped without evaluating their headers."""

import io
from pathlib import Path

import numpy as np
import pytest

from gradmesh.sdk.checkpoint.npy import map_npy, read_npy_header


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.ones((3, 2), np.float32)),
        np.ones(3, ">f8"),
        np.array(7, np.uint8),
        np.empty((0, 4), np.float16),
        np.array([True, False]),
    ],
    ids=str,
)
def test_arrays_come_back_as_numpy_wrote_them(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)

    found = map_npy(tmp_path / "a.npy")

    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert not found.size or not found.flags.writeable


def test_both_versions_are_read() -> None:
    for version in ((1, 0), (2, 0)):
        file = io.BytesIO()
        np.lib.format.write_array(file, np.ones((2, 3)), version)
        file.seek(0)
        assert read_npy_header(file) == (np.dtype(np.float64), (2, 3), False)
        assert file.tell() == len(file.getvalue()) - 48


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.zeros(2, "i4,f4"), np.array([1j])], ids=str
)
def test_elements_that_are_no_numbers_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)

    with pytest.raises(ValueError, match="not numbers"):
        map_npy(tmp_path / "a.npy")


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(100))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data[:-1])

    with pytest.raises(ValueError, match="cut off"):
        map_npy(tmp_path / "a.npy")
