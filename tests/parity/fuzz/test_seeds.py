import io

import pytest

from tests.parity.fuzz.seeds import Budget, Progress, budget, seeds


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FUZZ_SEEDS": "17..19"}, Budget(17, 19)),
        ({"FUZZ_SEEDS": "17"}, Budget(17, 17)),
        ({"FUZZ_SEEDS": "3..9", "FUZZ_SECONDS": "2.5"}, Budget(3, 9, 2.5)),
    ],
)
def test_budget_is_read_from_the_environment(environment: dict[str, str], expected: Budget) -> None:
    assert budget(environment) == expected


def test_without_seeds_they_begin_at_the_date() -> None:
    found = budget({"FUZZ_SECONDS": "5"})

    assert found.last is None
    assert found.seconds == 5
    assert found.first > 20_000_000_000_000


@pytest.mark.parametrize("environment", [{"FUZZ_SEEDS": "a..b"}, {"FUZZ_SECONDS": "soon"}])
def test_unreadable_variables_are_named(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(environment))):
        budget(environment)


def test_shares_split_the_seeds() -> None:
    whole = Budget(5, 11)

    assert sorted([*seeds(whole, 0, 2), *seeds(whole, 1, 2)]) == list(range(5, 12))
    assert list(seeds(Budget(5, None, 0.0))) == []


def test_summary_names_the_replay_and_fails() -> None:
    stream = io.StringIO()
    progress = Progress("fuzz", "make it SEEDS={seed}", stream)
    progress.count(2, {"add": 3})

    assert progress.summarize() == 0
    progress.fail(7, "report")

    assert progress.summarize() == 1
    assert "make it SEEDS=7" in stream.getvalue()
    assert "add 3" in stream.getvalue()
