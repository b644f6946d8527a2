"""A trainer that all-reduces for ever, and joins again whenever its group is lost.

Arguments: address of the coordinator, name, backend, timeout in seconds, 1 if it takes the place
of a former process. Prints one JSON line for each generation and one for each loss.
"""

import json
import sys

import numpy as np

from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.trainer.errors import CollectiveTimeout, HandshakeRefused, PeerLost
from gradmesh.trainer.process_group import connect


def say(**words):
    print(json.dumps(words), flush=True)


def main():
    address, name, backend, timeout_s, replaces = sys.argv[1:]
    mesh = join_mesh(
        address, name=name, role="trainer", address="127.0.0.1:1", replace=replaces == "1"
    )
    while True:
        place = mesh.connection.join_trainers(30)
        try:
            with connect(
                mesh.connection.store(place.generation),
                generation=place.generation,
                rank=place.rank,
                world_size=place.world_size,
                timeout_s=float(timeout_s),
                backend=backend,
            ) as group:
                array = group.empty(500_000, np.float32)
                array[...] = group.rank + 1
                group.all_reduce(array).wait()
                say(
                    generation=place.generation,
                    rank=group.rank,
                    size=group.size,
                    backend=group.backend,
                    total=[float(array.min()), float(array.max())],
                )
                while True:
                    group.all_reduce(array, "avg").wait()
        except (PeerLost, CollectiveTimeout, HandshakeRefused) as error:
            named = getattr(error, "ranks", None) or [getattr(error, "rank", None)]
            say(lost=list(named), kind=type(error).__name__)


main()
