import io
import json
import logging

from gradmesh.launch.screen import LogScreen, ScreenHandler

LINE = json.dumps({"ts": "2026-01-02T03:04:05", "level": "info", "role": "x", "message": "m"})


def test_pretty_screen_puts_the_process_in_front() -> None:
    stream = io.StringIO()
    screen = LogScreen(stream, pretty=True, width=10)

    screen.write("trainer-0", LINE)
    screen.write("trainer-0", "[not markup] plain")

    assert stream.getvalue().splitlines() == [
        "trainer-0  │ 03:04:05 info    m",
        "trainer-0  │ [not markup] plain",
    ]


def test_plain_screen_passes_lines_as_they_are() -> None:
    stream = io.StringIO()

    LogScreen(stream, pretty=False).write("trainer-0", LINE)

    assert stream.getvalue() == LINE + "\n"


def test_records_of_the_supervisor_have_the_same_format() -> None:
    stream = io.StringIO()
    handler = ScreenHandler(LogScreen(stream, pretty=False))

    handler.handle(logging.makeLogRecord({"msg": "x", "levelname": "INFO", "child": "a"}))

    fields = json.loads(stream.getvalue())
    assert (fields["role"], fields["message"], fields["child"]) == ("supervisor", "x", "a")
