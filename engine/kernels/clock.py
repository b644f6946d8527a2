"""The clock algorithm (second chance): which rows of a slow store are kept in fast memory."""

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
    positions: Any,
    moves: Any,
) -> Any:
    """Assign each slot a position in fast memory.

    Args:
        slots: int64 [n]; -1 is left alone. At most half as many distinct ones as positions.
        where: int32 [slots], the position of each slot plus one; 0 for none.
        owners: int64 [positions], the slot in each position; -1 for none.
        chance: uint8 [positions], 1 for positions used since the hand passed.
        pinned: int64 [positions], the turn that needs the position.
        turn: Number of this call.
        hand: int64 [1], the position of the clock hand.
        positions: int64 [n], filled in.
        moves: int64 [n, 3], filled in: position, slot that leaves it (or -1), slot that enters it.

    Returns:
        How many moves there are.
    """
    count = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if slot < 0:
            positions[i] = -1
            continue
        position = np.int64(where[slot]) - 1
        if position < 0:
            while True:
                position = hand[0]
                hand[0] = position + 1 if position + 1 < owners.shape[0] else 0
                if pinned[position] == turn:
                    continue
                if chance[position] == 0:
                    break
                chance[position] = 0
            leaving = owners[position]
            if leaving >= 0:
                where[leaving] = 0
            owners[position] = slot
            where[slot] = position + 1
            moves[count, 0], moves[count, 1], moves[count, 2] = position, leaving, slot
            count += 1
        chance[position] = 1
        pinned[position] = turn
        positions[i] = position
    return count
