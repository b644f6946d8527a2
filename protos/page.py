"""Pages of sorted lists, so that no response grows with the cluster."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from gradmesh.protos import limits
from gradmesh.protos.limits import check_text

T = TypeVar("T")


def page_of(
    items: Sequence[T],
    token: str,
    page_size: int,
    *,
    name: Callable[[T], str],
    order: Callable[[str], Any] = str,
    size: Callable[[T], int] = lambda item: 0,
) -> tuple[Sequence[T], str]:
    """Return a page of sorted items, and the token of the next page; empty after the last.

    A token is the name of the last item of a page. So items that come or go between two pages do
    not move the others.

    Args:
        items: All items, in the order of their names.
        token: Of the previous page; empty for the first.
        page_size: Most items; 0 for as many as a page may have.
        name: Returns the name of an item.
        order: Returns the sort key of a name.
        size: Returns the bytes of an item.
    """
    check_text("page token", token, limits.MAX_NAME_BYTES)
    begin = bisect_right(items, order(token), key=lambda item: order(name(item))) if token else 0
    end = min(begin + min(page_size or limits.MAX_PAGE, limits.MAX_PAGE), len(items))
    end = begin + _fitting(map(size, items[begin:end]))
    return items[begin:end], name(items[end - 1]) if end < len(items) else ""


def _fitting(sizes: Iterable[int]) -> int:
    """Return how many of the first items fit into a page; one at least."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > limits.MAX_PAGE_BYTES:
            break
        count += 1
    return count


def all_pages(fetch: Callable[[str], tuple[Iterable[T], str]]) -> list[T]:
    """Return the items of all pages.

    Args:
        fetch: Returns the items of a page, and the token of the next one, for a token.
    """
    items, token = fetch("")
    found = list(items)
    while token:
        items, token = fetch(token)
        found += items
    return found
