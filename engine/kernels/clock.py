"""The clock: which rows of a slow store lie in fast memory, by second chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit


@jit
def plan(
    slots: Any,
    where: Any,
    owners: Any,
    chance: Any,
    pinned: Any,
    turn: Any,
    hand: Any,
    places: Any,
    moves: Any,
) -> Any:
    """Give each slot a place in fast memory.

    Args:
        slots: int64 [n]; -1 is left alone. At most half as many distinct ones as places.
        where: int32 [slots], the place of each slot plus one; 0 for none.
        owners: int64 [places], the slot in each place; -1 for none.
        chance: uint8 [places], 1 for places used since the hand passed.
        pinned: int64 [places], the turn that needs the place.
        turn: Number of this call.
        hand: int64 [1], where the clock stands.
        places: int64 [n], filled in.
        moves: int64 [n, 3], filled in: place, slot that leaves it (or -1), slot that enters it.

    Returns:
        How many moves there are.
    """
    count = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if slot < 0:
            places[i] = -1
            continue
        place = np.int64(where[slot]) - 1
        if place < 0:
            while True:
                place = hand[0]
                hand[0] = place + 1 if place + 1 < owners.shape[0] else 0
                if pinned[place] == turn:
                    continue
                if chance[place] == 0:
                    break
                chance[place] = 0
            leaving = owners[place]
            if leaving >= 0:
                where[leaving] = 0
            owners[place] = slot
            where[slot] = place + 1
            moves[count, 0], moves[count, 1], moves[count, 2] = place, leaving, slot
            count += 1
        chance[place] = 1
        pinned[place] = turn
        places[i] = place
    return count
