"""The table of limits in docs/security.md is complete, and has the numbers of the code."""

import re
from pathlib import Path

from gradmesh.protos import limits
from gradmesh.protos.bound import Bound
from gradmesh.protos.rpcs import REPEATABLE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
SECTION = PAGE.read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]


def forms(number: int) -> set[str]:
    """Return how the page may write a number."""
    found = {str(number), f"2^{number.bit_length() - 1}"}
    for shift, unit in ((10, "KiB"), (20, "MiB"), (30, "GiB")):
        if number % (1 << shift) == 0:
            found.add(f"{number >> shift} {unit}")
    return found


def test_every_rpc_says_what_it_makes_a_process_keep() -> None:
    named = set(re.findall(r"`([A-Za-z]+)`", SECTION))

    assert {path.rpartition("/")[2] for path in REPEATABLE} - named == set()


def test_every_bound_is_in_the_table_with_its_numbers() -> None:
    bounds = {name: bound for name, bound in vars(limits).items() if isinstance(bound, Bound)}

    assert len(bounds) > 15
    for name, bound in bounds.items():
        for number in (bound.total, bound.per_caller):
            assert not number or any(form in SECTION for form in forms(number)), (name, number)


def test_pages_and_requests_are_as_large_as_the_page_says() -> None:
    assert f"{limits.MAX_PAGE} items and {limits.MAX_PAGE_BYTES >> 20} MiB" in SECTION
    assert f"{limits.MAX_COORDINATOR_REQUEST_BYTES >> 10} KiB" in SECTION
    for number in (limits.MAX_OPENERS, limits.DEDUPE_WORKERS, limits.DEDUPE_NUMBERS):
        assert str(number) in SECTION
