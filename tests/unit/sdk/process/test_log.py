import io
import json
import logging
from collections.abc import Iterator

import pytest

from gradmesh.sdk.process.log import LogConfig, pretty_line, set_up_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_lines_carry_the_extra_fields() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(), "trainer-0", stream)

    logging.getLogger("a.b").info("joined %s", "it", extra={"generation": 3, "role": "x"})

    (line,) = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert list(fields) == ["ts", "level", "role", "name", "message", "generation", "role_"]
    assert (fields["role"], fields["message"], fields["generation"]) == (
        "trainer-0",
        "joined it",
        3,
    )


def test_pretty_lines_are_coloured_on_a_terminal_only() -> None:
    for stream, colour in ((Terminal(), True), (io.StringIO(), False)):
        set_up_logging(LogConfig(format="pretty"), "trainer-0", stream)

        logging.getLogger("a").warning("slow", extra={"step": 7})

        assert ("\x1b[33m" in stream.getvalue()) is colour
        assert "trainer-0" in stream.getvalue()
        assert "step=7" in stream.getvalue()


def test_auto_is_pretty_on_a_terminal() -> None:
    stream = Terminal()
    set_up_logging(LogConfig(), "r", stream)

    logging.getLogger("a").info("x")

    assert not stream.getvalue().startswith("{")


def test_level_drops_what_is_less_important() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(level="error"), "r", stream)

    logging.getLogger("a").warning("x")

    assert stream.getvalue() == ""


def test_secrets_are_redacted() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(), "r", stream)

    logging.getLogger("a").info("x", extra={"token": "s3cret", "token_file": "/a/b"})

    assert "s3cret" not in stream.getvalue()
    assert json.loads(stream.getvalue())["token_file"] == "/a/b"


def test_traceback_is_kept_within_the_json_line() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(), "r", stream)

    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("a").exception("failed")

    (line,) = stream.getvalue().splitlines()
    assert "ValueError: boom" in json.loads(line)["traceback"]


def test_json_fields_render_as_a_pretty_line() -> None:
    fields = {
        "ts": "2026-01-02T03:04:05.678+00:00",
        "level": "info",
        "role": "r",
        "message": "m",
        "k": 1,
    }

    assert pretty_line(fields, colour=False, role=False) == "03:04:05 info    m k=1"


def test_the_effective_configuration_is_only_in_json_lines() -> None:
    shown = {}
    for form in ("pretty", "json"):
        stream = io.StringIO()
        set_up_logging(LogConfig(format=form), "trainer-0", stream)
        logging.getLogger("x").info("starting", extra={"config": {"job": {"steps": 1}}, "pid": 7})
        shown[form] = stream.getvalue()

    assert shown["pretty"].endswith("trainer-0 starting pid=7\n")
    assert json.loads(shown["json"])["config"] == {"job": {"steps": 1}}
