import pytest

from gradmesh.protos import limits
from gradmesh.protos.errors import LimitExceeded
from gradmesh.protos.page import all_pages, page_of


def fetch(names, page_size, **options):
    return lambda token: page_of(names, token, page_size, name=str, **options)


@pytest.mark.parametrize("page_size", [0, 1, 2, 3, 7, 100])
def test_pages_have_every_name_once(page_size):
    names = [f"n-{i}" for i in range(7)]

    assert all_pages(fetch(names, page_size)) == names


def test_a_page_is_bounded_in_items_and_bytes(monkeypatch):
    monkeypatch.setattr(limits, "MAX_PAGE", 4)
    monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 10)
    names = list("abcdefgh")

    assert fetch(names, 100)("") == (["a", "b", "c", "d"], "d")
    assert fetch(names, 100, size=lambda _: 4)("b") == (["c", "d"], "d")
    assert fetch(names, 100, size=lambda _: 99)("b") == (["c"], "c")


def test_names_that_come_and_go_do_not_move_the_others():
    first, token = fetch(["a", "c", "e"], 2)("")

    assert fetch(["b", "d", "e"], 2)(token) == (["d", "e"], "")
    assert first == ["a", "c"]


def test_a_token_is_a_name():
    with pytest.raises(LimitExceeded, match="page token"):
        fetch(["a"], 1)("x" * 300)
