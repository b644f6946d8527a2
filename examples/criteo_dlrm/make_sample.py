"""Write lines in the layout of Criteo's files, with a click rate that can be learned.

    python make_sample.py sample.txt 1000

Download Criteo's own data yourself; these lines only have their layout: a label, 13 numbers and
26 hexadecimal values of 8 digits, separated by tabs, some of them missing.
"""

import sys
from pathlib import Path

import numpy as np

from gradmesh.trainer.data import ClickData, criteo_spec

_MISSING = 0.1


def lines(count: int, seed: int = 0) -> list[str]:
    """Return `count` lines."""
    rng = np.random.default_rng(seed)
    data = ClickData(criteo_spec(seed=seed, scale=1e-4, alpha=1.2))
    batch = data.batch("train", 0, count)
    numbers, tokens = np.floor(batch.dense * 10).astype(int), batch.ids
    found = []
    for label, dense, ids in zip(batch.labels, numbers, tokens, strict=True):
        gaps = rng.random(39) < _MISSING
        # Spread over 32 bits, as hashes are; the same value gives the same one.
        names = [f"{(i + 1) * 2654435761 % 2**32:08x}" for i in ids.tolist()]
        fields = [*map(str, dense.tolist()), *names]
        shown = ["" if gap else field for field, gap in zip(fields, gaps, strict=True)]
        found.append("\t".join([f"{label:.0f}", *shown]))
    return found


if __name__ == "__main__":
    target, wanted = Path(sys.argv[1]), int(sys.argv[2])
    target.write_text("\n".join(lines(wanted)) + "\n", encoding="utf-8")
