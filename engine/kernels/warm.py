"""Ahead-of-time compilation: run once where the package is installed, so that no process waits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels import (
    bag,
    fused,
    hashing,
    initializer,
    norm,
    route,
    rows,
    sketch,
    update,
)


def warm_up(dtype: Any = np.float32) -> None:
    """Compile every kernel for a dtype and leave it in the cache on disk.

    An image build that calls this once saves each process about ten seconds at its first step.
    """
    kind = np.dtype(dtype).type
    ids = np.array([1, 0, 1], dtype=np.int64)
    matrix = np.ones((3, 2), dtype=dtype)
    # Arrays that came over the wire are read-only, which is another type to the compiler.
    for wire in (False, True):
        given = ids.copy(), matrix.copy()
        for array in given:
            array.setflags(write=not wire)
        _tables(*given, matrix)
        _updates(ids[:2], matrix, given[1][:2], kind)
    _bags(ids, matrix)
    _layers(matrix)


def _tables(ids: Any, sent: Any, matrix: Any) -> None:
    distinct, inverse = hashing.unique_inverse(ids)
    hashing.has_repeats(ids)
    rows.all_finite(sent)
    rows.finite_copy(sent)
    rows.gather_columns([sent], [0], ids[None])
    nothing = np.zeros(1, np.int64)
    starts, bounds = np.array([0, 3]), np.array([[0], [9]])
    route.route_ids(ids, starts, bounds, np.zeros(4096, np.int32), 1, nothing, nothing, 1)
    route.route_one(ids, 0, 9)
    rows.coalesce(inverse, sent, len(distinct))
    rows.gather(matrix, ids)
    rows.gather(matrix, inverse)
    rows.scatter_sgd(matrix.copy(), inverse, sent, 0.1)
    rows.scatter_add(matrix.copy(), inverse, sent)
    rows.copy_out(matrix, ids, sent.copy())
    rows.copy_in(matrix.copy(), ids, sent)
    rows.copy_marked(matrix, ids, np.ones(len(matrix), np.bool_), sent.copy())
    initializer.init_uniform(matrix.copy(), ids, 0, 0.0, 1.0)
    initializer.init_normal(matrix.copy(), ids, 0, 0.0, 1.0)
    cells = np.zeros(2, np.uint16)
    sketch.mark_changed(cells, ids, 1, 1)
    sketch.changed_after(cells, ids, 0, 1, np.empty(3, np.int64))
    local, uses, seen = np.zeros(4096, np.int32), np.zeros(1, np.int64), np.empty(3, np.bool_)
    sketch.count_uses(ids, local, np.zeros((1, 2), np.uint8), uses, 1, True, seen)
    sketch.drawn(ids, np.uint64(1), np.uint64(1), seen)
    slots = hashing.IdMap(1)
    slots.insert(np.arange(40))
    slots.find(ids)
    slots.ids()


def _bags(ids: Any, matrix: Any) -> None:
    starts = np.array([0, 2, 3], dtype=np.int64)
    scales = np.ones(3, dtype=matrix.dtype)
    for factors in (None, scales):
        bag.bag_sum(matrix, ids, starts, factors)
        bag.bag_sum_backward(ids, 2, matrix[:2], starts, factors)
    _, winner = bag.bag_max(matrix, ids, starts)
    bag.bag_max_backward(ids, 2, matrix[:2], winner)
    bag.bag_weights_backward(matrix, ids, matrix[:2], starts)
    bag.interleave(starts[None, :2], np.diff(starts)[None], np.zeros(1, np.int64))


def _updates(index: Any, matrix: Any, grads: Any, kind: Any) -> None:
    weights, first, second, third = (matrix.copy() for _ in range(4))
    one, zero = kind(1), kind(0)
    update.sgd(weights, index, grads, one, zero)
    update.momentum(weights, first, index, grads, one, zero, zero, one, False)
    update.adagrad(weights, first, index, grads, one, zero, one)
    update.rowwise_adagrad(weights, first[:, :1].copy(), index, grads, one, zero, one)
    means = (one, zero, one, one, one, one, one, one)
    update.adam(weights, first, second, index, grads, *means)
    update.amsgrad(weights, first, second, third, index, grads, *means)
    five = (one, zero, one, one, one)
    update.adamax(weights, first, second, index, grads, *five)
    update.rmsprop(weights, first, first, first, index, grads, *five, zero, False)
    update.adadelta(weights, first, second, index, grads, *five)
    update.rprop(weights, first, second, index, grads, *five)
    update.nadam(weights, first, second, index, grads, one, *means)
    update.radam(weights, first, second, index, grads, *means[:7], False)
    update.ftrl(weights, first, second, index, grads, one, one, zero, zero)


def _layers(matrix: Any) -> None:
    out, row = matrix.copy(), matrix[0].copy()
    fused.bias_add(out, row, True)
    fused.relu_backward(matrix, matrix, out, row)
    fused.column_sum(matrix, row)
    fused.relu_select(row, row, row.copy())
    flat, total = matrix.reshape(-1), np.empty((), dtype=matrix.dtype)
    fused.bce_with_logits(flat, flat, flat.copy(), 1, total)
    fused.erf(flat)
    fused.mse(flat, flat, flat.copy(), 1, total)
    cube = matrix.reshape(1, 3, 2)
    result = cube.copy()
    sums, squares = np.zeros(3), np.zeros(3)
    numbers = np.ones(3, dtype=matrix.dtype)
    norm.channel_sums(cube, sums.copy(), sums, squares)
    norm.scale_shift(cube, result, numbers, numbers)
    norm.grad_sums(cube, cube, sums.copy(), sums, squares)
    norm.combine(cube, cube, result, numbers, numbers, numbers)
