"""The op suite: Einstein's sums."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, normal

CASES = [
    Case(
        f"einsum-{name}",
        lambda t, f, *xs, equation=equation: t.einsum(equation, *xs),
        normal(*shapes),
    )
    for name, equation, shapes in (
        ("matmul", "ij,jk->ik", [(3, 5), (5, 2)]),
        ("implicit", "ij,jk", [(3, 5), (5, 2)]),
        ("implicit-order", "bA,Ac", [(3, 5), (5, 2)]),
        ("batched", "bij,bjk->bik", [(2, 3, 5), (2, 5, 4)]),
        ("attention", "bqhd,bkhd->bhqk", [(2, 3, 2, 5), (2, 4, 2, 5)]),
        ("ellipsis", "...ij,...jk->...ik", [(2, 3, 5), (4, 1, 5, 2)]),
        ("ellipsis-first", "...i,...i", [(2, 3, 5), (3, 5)]),
        ("ellipsis-summed", "...ij,...jk->ik", [(2, 3, 5), (2, 5, 4)]),
        ("ellipsis-middle", "i...j,...->i", [(2, 3, 4), (3,)]),
        ("ellipsis-of-result", "ij->i...j", [(2, 3)]),
        ("transpose", "ij->ji", [(3, 5)]),
        ("alphabetical", "ba", [(3, 5)]),
        ("sum", "ij->", [(3, 5)]),
        ("sum-axis", "ijk->ik", [(3, 5, 2)]),
        ("trace", "ii", [(4, 4)]),
        ("diagonal", "ii->i", [(4, 4)]),
        ("diagonal-batched", "ibi->bi", [(4, 2, 4)]),
        ("diagonal-thrice", "iii->i", [(3, 3, 3)]),
        ("diagonal-product", "i,ii->i", [(4,), (4, 4)]),
        ("elementwise", "ij,ij->ij", [(3, 5), (3, 5)]),
        ("outer", "i,j->ij", [(3,), (5,)]),
        ("dot", "i,i->", [(5,), (5,)]),
        ("rows", "bi,bi->b", [(3, 5), (3, 5)]),
        ("bilinear", "bi,oij,bj->bo", [(3, 5), (2, 5, 4), (3, 4)]),
        ("chain", "ij,jk,kl->il", [(3, 5), (5, 2), (2, 4)]),
        ("alone", "ij,kl->il", [(3, 5), (2, 4)]),
        ("broadcast", "ij,kj->ik", [(3, 5), (4, 1)]),
        ("broadcast-result", "i,i->i", [(1,), (3,)]),
        ("numbers", ",->", [(), ()]),
        ("spaces", " i j , j k -> k i ", [(3, 5), (5, 2)]),
        ("empty", "ij,jk->ik", [(0, 5), (5, 2)]),
        ("empty-sum", "ij,jk->ik", [(3, 0), (0, 2)]),
        ("empty-diagonal", "ii->i", [(0, 0)]),
    )
] + [
    Case("einsum-list", lambda t, f, a, b: t.einsum("ij,jk", [a, b]), normal((3, 5), (5, 2))),
]
