import numpy as np
import pytest

from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.data.text_layout import (
    TextLayout,
    criteo_layout,
    hash_texts,
    movielens_layout,
    unlabelled,
)
from gradmesh.trainer.errors import DataError

LAYOUT = TextLayout(("label", "dense", "hex", "category"), ",")


def test_dense_values_and_missing_values():
    columns, bad = LAYOUT.parse(b"1,2.5,ff,red\r\n0,,,\n1,-3e2,0A,7\n")

    assert bad == []
    assert columns.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(columns.dense[:, 0], np.array([2.5, np.nan, -300], np.float32))
    assert columns.tokens[:, 0].tolist() == [255, MISSING, 10]
    assert columns.tokens[1:, 1].tolist() == [MISSING, 7]
    assert columns.tokens[0, 1] == hash_texts([b"red"])[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "the line is empty"),
        ("\r", "the line is empty"),
        ("1,2", "the line ends after column 2; 4 are expected"),
        ("1,2,3,4,5", "there is a column 5; 4 are expected"),
        ("2,2,3,4", "column 1, the label, is neither 0 nor 1"),
        (",2,3,4", "column 1, the label, is neither 0 nor 1"),
        ("1,2x,3,4", "column 2 is not a number"),
        ("1,2e,3,4", "column 2 is not a number"),
        ("1,.,3,4", "column 2 is not a number"),
        ("1,1e39,3,4", "column 2 is not a number"),
        ("1,-9e999,3,4", "column 2 is not a number"),
        ("1,2,xyz,4", "column 3 is not a hexadecimal number"),
        ("1,2,1234567890abcdef,4", "column 3 is not a hexadecimal number"),
    ],
)
def test_bad_line_is_left_out_and_named(line, reason):
    columns, bad = LAYOUT.parse(f"1,1,1,1\n{line}\n0,2,2,2".encode())

    assert columns.labels.tolist() == [1, 0]
    assert columns.dense[:, 0].tolist() == [1, 2]
    assert bad == [(8, reason)]


def test_a_single_column_may_be_missing():
    columns, bad = TextLayout(("category",)).parse(b"7\n\n8\n")

    assert bad == []
    assert columns.tokens[:, 0].tolist() == [7, MISSING, 8]


def test_criteo_has_40_columns_and_39_without_the_label():
    assert (criteo_layout().dense_features, criteo_layout().features) == (13, 26)
    assert len(criteo_layout().columns) == 40
    assert unlabelled(criteo_layout()).columns == criteo_layout(labelled=False).columns


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ratings.csv", b"1,31,2.5,1260759144\n7,32,4.0,1260759179\n"),
        ("ratings.dat", b"1::31::2.5::1260759144\n7::32::4.0::1260759179\n"),
        ("u.data", b"1\t31\t2.5\t1260759144\n7\t32\t4.0\t1260759179\n"),
    ],
)
def test_movielens_in_its_three_layouts(name, text):
    columns, bad = movielens_layout(name, 4.0).parse(text)

    assert bad == []
    assert columns.labels.tolist() == [0, 1]
    assert columns.tokens.tolist() == [[1, 31], [7, 32]]


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ("label", "colour")},
        {"columns": ("label", "label")},
        {"columns": ("label",), "separator": "::"},
        {"columns": ("label",), "separator": "\n"},
    ],
)
def test_an_invalid_layout_is_refused(options):
    with pytest.raises(DataError):
        TextLayout(**options)


def test_long_and_short_numbers_are_read_as_python_reads_them():
    texts = ["0", "-0", "12.75", "1e3", "1.5E-3", "123456789", "+4", ".5", "7."]
    lines = "\n".join(f"0,{text},1,1" for text in texts).encode()

    columns, bad = LAYOUT.parse(lines)

    assert bad == []
    np.testing.assert_allclose(columns.dense[:, 0], [float(text) for text in texts], rtol=1e-6)
