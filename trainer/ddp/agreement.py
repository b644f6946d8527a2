"""Whether all ranks mean the same: parameters, shapes, dtypes, options.

Every rank sees every rank's description, so all of them raise, with the same words. Equal
descriptions cost one exchange of 32 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from gradmesh.engine.backend import to_numpy
from gradmesh.trainer.ddp.exchange import gather_texts, on_group
from gradmesh.trainer.errors import CollectiveMismatch
from gradmesh.trainer.process_group import ProcessGroup


def check_agreement(group: ProcessGroup, description: Sequence[tuple[str, str]]) -> None:
    """Compare what ranks describe; collective.

    Args:
        group: The ranks.
        description: Pairs of a thing's name and how it is here, in the same order on every rank.

    Raises:
        CollectiveMismatch: Ranks differ; raised on all of them, naming rank and thing.
    """
    lines = [f"{thing}\t{how}" for thing, how in description]
    text = "\n".join(lines)
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = group.empty((group.size, own.size), np.uint8)
    group.all_gather(list(digests), on_group(group, own)).wait()
    seen = to_numpy(digests)
    if (seen == seen[0]).all():
        return
    texts = [whole.split("\n") for whole in gather_texts(group, text)]
    raise CollectiveMismatch(_explain(texts))


def _explain(texts: Sequence[Sequence[str]]) -> str:
    first, found = texts[0], []
    for rank, theirs in enumerate(texts):
        for mine, other in zip_longest(first, theirs):
            if mine != other:
                found.append(f"rank {rank} has {_show(other)} where rank 0 has {_show(mine)}")
                break
    counts = [len(theirs) for theirs in texts]
    if len(set(counts)) > 1:
        listed = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
        found.append(f"entries: {listed}")
    return (
        "ranks differ in parameters or options: "
        + "; ".join(found)
        + "; build the same module with the same options on every rank"
    )


def _show(line: str | None) -> str:
    if line is None:
        return "nothing"
    return line.replace("\t", " ")
