"""Einstein's sums: products of tensors, summed over the axes that the result does not name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from gradmesh.engine.autograd.ops.arithmetic import mul
from gradmesh.engine.autograd.ops.indexing import getitem
from gradmesh.engine.autograd.ops.linear import matmul
from gradmesh.engine.autograd.ops.reduction import sum as sum_over
from gradmesh.engine.autograd.ops.shape import permute, reshape
from gradmesh.engine.backend import DtypeError, ShapeError
from gradmesh.engine.backend.dtype import bool_

# A letter, or for an axis under an ellipsis its distance from the last of them.
Label: TypeAlias = str | int
Labels: TypeAlias = list[Label]


def einsum(equation: str, *operands: Any) -> Any:
    """Return the Einstein sum: products of tensors, summed over labels that the result omits.

    Args:
        equation: Labels of each operand's axes, letters and at most one `...` each, then `->` and
            the labels of the result. Without `->` the result has the axes of `...` and then, in
            alphabetical order, the labels that appear once. A label that appears twice in an
            operand takes its diagonal.
        operands: One tensor for each group of labels, or one list of them; of one dtype.

    Raises:
        ValueError: If the equation cannot be read.
        ShapeError: If it does not fit the operands.
        DtypeError: If the operands are of several dtypes, or bool.
    """
    given: Sequence[Any] = operands
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        given = operands[0]
    inputs, output, sizes = _read(equation, given)
    dtypes = {operand.dtype for operand in given}
    if len(dtypes) > 1 or bool_ in dtypes:
        raise DtypeError(
            f"einsum: takes tensors of one dtype that is not bool, not {sorted(map(str, dtypes))}"
        )
    factors = [_plain(x, labels, sizes) for x, labels in zip(given, inputs, strict=True)]
    result, labels = factors[0]
    for position, (factor, its_labels) in enumerate(factors[1:], start=2):
        later = {label for _, some in factors[position:] for label in some}
        result, labels = _pair(result, labels, factor, its_labels, later | set(output))
    result, labels = _summed(result, labels, set(output))
    return permute(result, tuple(labels.index(label) for label in output))


def _read(equation: str, operands: Sequence[Any]) -> tuple[list[Labels], Labels, dict[Label, int]]:
    """Return the labels of the operands and of the result, and the length of each label."""
    if not isinstance(equation, str) or not operands:
        raise ValueError("einsum: takes an equation such as 'ij,jk->ik' and its operands")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(
            f"einsum: {equation!r} has {len(terms)} operands, but {len(operands)} are given"
        )
    inputs = []
    sizes: dict[Label, int] = {}
    hidden = 0
    for position, (term, operand) in enumerate(zip(terms, operands, strict=True)):
        count = operand.ndim - len(_letters(equation, term))
        if count < 0 or (count and "." not in term):
            raise ShapeError(
                f"einsum: {term!r} does not fit operand {position} of shape {tuple(operand.shape)}"
            )
        hidden = max(hidden, count)
        inputs.append(_labels(term, count))
        _measure(sizes, inputs[-1], operand.shape, position)
    if arrow:
        letters = _letters(equation, right)
        for letter in letters:
            if letters.count(letter) > 1 or letter not in sizes:
                raise ValueError(
                    f"einsum: {letter!r} of the result must appear once there and in an operand"
                )
        return inputs, _labels(right, hidden), sizes
    seen = "".join(terms)
    once = sorted(c for c in set(seen) if c != "." and seen.count(c) == 1)
    return inputs, [*reversed(range(hidden)), *once], sizes


def _letters(equation: str, term: str) -> str:
    letters = term.replace("...", "", 1)
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise ValueError(
            f"einsum: {term!r} in {equation!r} is not letters with at most one '...' among them"
        )
    return letters


def _labels(term: str, hidden: int) -> Labels:
    before, dots, after = term.partition("...")
    return [*before, *(reversed(range(hidden)) if dots else ()), *after]


def _measure(sizes: dict[Label, int], labels: Labels, shape: Sequence[int], position: int) -> None:
    """Record the length of each label; a length of 1 broadcasts, but not on a diagonal."""
    own: dict[Label, int] = {}
    for label, length in zip(labels, shape, strict=True):
        if own.setdefault(label, length) != length:
            raise ShapeError(
                f"einsum: {label!r} of operand {position} has lengths {own[label]} and {length}"
            )
        known = sizes.setdefault(label, length)
        if known == 1:
            sizes[label] = length
        elif length not in (1, known):
            name = f"axis -{label + 1} of '...'" if isinstance(label, int) else repr(label)
            raise ShapeError(
                f"einsum: {name} has length {length} in operand {position} and {known} before"
            )


def _plain(x: Any, labels: Labels, sizes: dict[Label, int]) -> tuple[Any, Labels]:
    """Return an operand with each label once, and without axes that only broadcast."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x, labels = _diagonal(x, labels, first, second)
    kept = [n == sizes[label] for label, n in zip(labels, x.shape, strict=True)]
    if not all(kept):
        x = reshape(x, tuple(n for n, keep in zip(x.shape, kept, strict=True) if keep))
        labels = [label for label, keep in zip(labels, kept, strict=True) if keep]
    return x, labels


def _diagonal(x: Any, labels: Labels, first: int, second: int) -> tuple[Any, Labels]:
    rest = [axis for axis in range(x.ndim) if axis not in (first, second)]
    length = x.shape[first]
    rows = permute(x, (*rest, first, second))
    flat = reshape(rows, (*rows.shape[:-2], length * length))
    # The elements of a diagonal are one row and one column apart.
    out = getitem(flat, (..., slice(None, None, length + 1)))
    return out, [*[labels[axis] for axis in rest], labels[first]]


def _summed(x: Any, labels: Labels, needed: set[Label]) -> tuple[Any, Labels]:
    """Return a tensor summed over the labels that nothing needs."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if not axes:
        return x, labels
    return sum_over(x, axes), [label for label in labels if label in needed]


def _pair(a: Any, of_a: Labels, b: Any, of_b: Labels, needed: set[Label]) -> tuple[Any, Labels]:
    """Return the product of two tensors, summed over what nothing needs, and its labels."""
    a, of_a = _summed(a, of_a, needed | set(of_b))
    b, of_b = _summed(b, of_b, needed | set(of_a))
    shared = [label for label in of_a if label in of_b]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    only_a = [label for label in of_a if label not in shared]
    only_b = [label for label in of_b if label not in shared]
    out = [*batch, *only_a, *only_b]
    lengths = {**dict(zip(of_a, a.shape, strict=True)), **dict(zip(of_b, b.shape, strict=True))}

    def shaped(x: Any, labels: Labels, *groups: Labels) -> Any:
        """Return a tensor with one axis for the batch and one for each group of labels."""
        x = permute(x, tuple(labels.index(label) for group in groups for label in group))
        return reshape(x, tuple(math.prod(lengths[n] for n in group) for group in groups))

    if inner:
        # Without a batch as matrices: a stack of one costs more.
        lead = [batch] if batch else []
        product = matmul(
            shaped(a, of_a, *lead, only_a, inner), shaped(b, of_b, *lead, inner, only_b)
        )
    else:
        product = mul(shaped(a, of_a, batch, only_a, []), shaped(b, of_b, batch, [], only_b))
    return reshape(product, tuple(lengths[label] for label in out)), out
