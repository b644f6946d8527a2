"""The op suite: all cases, one family a file; a new family is added here."""

from tests.unit.engine.cases import (
    arithmetic,
    edges,
    einsum,
    embedding,
    empty,
    indexing,
    interaction,
    layers,
    loss,
    matmul,
    pointwise,
    rearranging,
    reduction,
    shape,
)
from tests.unit.engine.cases.case import Case

CASES: list[Case] = [
    *arithmetic.CASES,
    *pointwise.CASES,
    *matmul.CASES,
    *einsum.CASES,
    *shape.CASES,
    *indexing.CASES,
    *rearranging.CASES,
    *reduction.CASES,
    *loss.CASES,
    *layers.CASES,
    *embedding.CASES,
    *interaction.CASES,
    *empty.CASES,
    *edges.CASES,
]
