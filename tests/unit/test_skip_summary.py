"""The closing line of a run."""

from tests.skip_summary import skip_summary


def test_reasons_of_a_kind_are_one_figure_with_the_command_that_helps():
    reasons = [
        "Skipped: could not import 'torch': No module named 'torch'",
        "Skipped: could not import 'torch': No module named 'torch'",
        "needs two CUDA devices; no GPU code has run here",
        "Skipped: the moon is not full",
    ]

    assert skip_summary(reasons, without_slow=False) == (
        "4 skipped: 2 need torch (make parity-setup), "
        "1 need a GPU (pytest -m gpu on such a machine), "
        "1 for another reason (the moon is not full)"
    )


def test_slow_tests_that_were_left_out_are_named():
    assert skip_summary([], without_slow=True) == (
        "nothing skipped; the slow ones were left out (make test-all)"
    )
