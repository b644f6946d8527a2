import numpy as np

from gradmesh.engine.kernels import clock


def test_a_slot_that_was_used_lately_stays():
    where, owners = np.zeros(10, np.int32), np.full(4, -1, np.int64)
    chance, pinned = np.zeros(4, np.uint8), np.zeros(4, np.int64)
    hand = np.zeros(1, np.int64)

    def place(turn, *slots):
        places, moves = np.empty(len(slots), np.int64), np.empty((len(slots), 3), np.int64)
        count = clock.plan(
            np.array(slots), where, owners, chance, pinned, turn, hand, places, moves
        )
        return places.tolist(), moves[:count].tolist()

    assert place(1, 5, 6) == ([0, 1], [[0, -1, 5], [1, -1, 6]])
    assert place(2, 7, -1, 8) == ([2, -1, 3], [[2, -1, 7], [3, -1, 8]])
    # The hand clears every use bit once, then evicts the first unused row.
    assert place(3, 9) == ([0], [[0, 5, 9]])
    place(4, 6)
    assert place(5, 1) == ([2], [[2, 7, 1]])
    assert (where > 0).nonzero()[0].tolist() == [1, 6, 8, 9]
