"""Small data sets in the formats that trainers read."""

import gzip

import numpy as np
import pytest


def lines_of(count, seed=0):
    """Lines in Criteo's layout, with gaps; the label follows from the first number."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        dense = ["" if rng.random() < 0.2 else str(rng.integers(-2, 500)) for _ in range(13)]
        dense[0] = str(number)
        tokens = ["" if rng.random() < 0.1 else f"{rng.integers(0, 40):08x}" for _ in range(26)]
        lines.append("\t".join([str(number % 2), *dense, *tokens]))
    return lines


@pytest.fixture
def criteo(tmp_path):
    def write(name="train.txt", count=300, seed=0, lines=None):
        file = tmp_path / name
        text = "\n".join(lines or lines_of(count, seed)) + "\n"
        file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return file

    return write


@pytest.fixture
def criteo_lines():
    return lines_of
