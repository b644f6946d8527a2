import io
import logging

import pytest

from gradmesh.cli.display import (
    BarScreen,
    LineScreen,
    NoteHandler,
    ResultTable,
    in_bytes,
    progress_screen,
    stage,
)
from gradmesh.launch.terminal import Terminal
from gradmesh.launch.training import with_last_progress
from gradmesh.sdk.cluster.status import ClusterStatus, MemberStatus

TRAINING = ClusterStatus(step=5, total_steps=10, loss=0.5, samples_per_s=12345.6)


def console(terminal: bool = False) -> tuple[Terminal, io.StringIO]:
    stream = io.StringIO()
    return Terminal(file=stream, force_terminal=terminal, width=120), stream


def test_progress_lines_appear_periodically_and_on_changes() -> None:
    out, stream = console()
    now = [0.0]
    screen = LineScreen("2 trainers", out, lambda: now[0])

    for at, status in [
        (0.0, ClusterStatus()),
        (0.2, ClusterStatus()),
        (0.4, TRAINING),
        (1, TRAINING),
        (4, TRAINING),
    ]:
        now[0] = at
        screen.update(status)
    screen.close()

    line = "training step 5/10 loss 0.5000  12,346 samples/s"
    assert stream.getvalue().splitlines() == [
        "2 trainers",
        "starting",
        line,
        line,
    ]


def test_bar_shows_step_loss_and_speed() -> None:
    out, stream = console(terminal=True)

    with BarScreen("2 trainers", out) as screen:
        screen.update(TRAINING)

    assert "5/10" in stream.getvalue()
    assert "loss 0.5000  12,346 samples/s" in stream.getvalue()


@pytest.mark.parametrize("kind", [BarScreen, LineScreen])
def test_warnings_are_notes_on_the_screen(kind: type[BarScreen] | type[LineScreen]) -> None:
    out, stream = console(terminal=kind is BarScreen)

    with kind("2 trainers", out) as screen:
        handler = NoteHandler(screen)
        handler.handle(logging.makeLogRecord({"msg": "[a] died", "levelno": logging.WARNING}))

    assert "[a] died" in stream.getvalue()


def test_screen_fits_the_stream() -> None:
    assert isinstance(progress_screen("x", console()[0]), LineScreen)
    bar = progress_screen("x", console(terminal=True)[0])
    bar.close()
    assert isinstance(bar, BarScreen)


def test_progress_is_kept_over_a_gap() -> None:
    waiting = with_last_progress(TRAINING, ClusterStatus(version="1"))
    done = with_last_progress(TRAINING, ClusterStatus(result={"auc": 1.0}))
    newer = ClusterStatus(step=1, total_steps=10)

    assert (waiting.version, waiting.step, waiting.total_steps, waiting.loss) == ("1", 5, 10, 0.5)
    assert (done.step, done.total_steps) == (10, 10)
    assert with_last_progress(TRAINING, newer) is newer
    assert with_last_progress(ClusterStatus(), ClusterStatus()) == ClusterStatus()


def test_stages_follow_each_other() -> None:
    member = MemberStatus(name="a", role="trainer", address="", incarnation=1, silence_s=0)

    stages = [
        stage(ClusterStatus()),
        stage(ClusterStatus(members=(member, member))),
        stage(TRAINING),
        stage(ClusterStatus(step=10, total_steps=10)),
        stage(ClusterStatus(result={"auc": 1.0})),
    ]

    assert stages == ["starting", "preparing", "training", "evaluating", "done"]


def test_final_table_has_the_figures_of_a_first_look() -> None:
    result = {"zeal": 1.5, "seconds": 12.34, "bytes_moved": 5 << 20, "auc": 0.78912}

    assert ResultTable(result).rows() == [
        ("AUC, held out", "0.7891"),
        ("bytes moved", "5.0 MiB"),
        ("time", "12.3 s"),
    ]


def test_final_table_is_printed() -> None:
    out, stream = console()

    ResultTable({"auc": 0.5}).show(out)

    assert "AUC, held out" in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 50, "1024.0 TiB")]
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert in_bytes(count) == text
