"""Texts of other processes cannot drive a terminal, forge lines of logs, or write into pages."""

import http.client
import io
import json
import logging
import os
import pty
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gradmesh.cli import main
from gradmesh.cli.display import BarScreen, LineScreen, NoteHandler
from gradmesh.cli.status_page import StatusPage
from gradmesh.launch.logs import LogFiles
from gradmesh.launch.screen import LogScreen
from gradmesh.launch.terminal import Terminal
from gradmesh.protos.coordinator.v1 import coordinator_pb2, membership_pb2, status_pb2
from gradmesh.protos.errors import NotMember, RemoteFailure
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.cluster.status import from_message
from gradmesh.sdk.process.log import LogConfig, set_up_logging
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.reply import error_from_proto
from gradmesh.sdk.transport.server import Server
from gradmesh.trainer.job.report import page
from tests.security.hostile import FORGED, TEXT, assert_harmless

_COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]


def hostile_status() -> status_pb2.GetStatusResponse:
    """Return a status with a hostile text in each of its fields."""
    status = status_pb2.GetStatusResponse(
        version=TEXT, tables=[TEXT], result={TEXT: 1.0}, warnings=[TEXT], generation=1
    )
    status.checkpoint.path = TEXT
    member = membership_pb2.Member(
        name=TEXT, role=membership_pb2.ROLE_TRAINER, address=TEXT, incarnation=1
    )
    entry = status.members.add(member=member)
    entry.progress.total_steps, entry.progress.step, entry.progress.loss = 10, 5, 0.5
    held = entry.contexts.add(count=3)
    held.opener.name = TEXT
    return status


class FakeCoordinator:
    """Answers GetStatus with hostile texts, and every other rpc with an error that quotes one."""

    def get_status(self, request: Any, call: Any) -> status_pb2.GetStatusResponse:
        return hostile_status()

    def __getattr__(self, verb: str) -> Callable[[Any, Any], Any]:
        def refuse(request: Any, call: Any) -> Any:
            raise NotMember(TEXT, name=TEXT)

        return refuse


@pytest.fixture
def address() -> Iterator[str]:
    server = Server({_COORDINATOR: FakeCoordinator()}, listen="127.0.0.1:0")
    server.start()
    yield server.address
    server.drain(0)


@pytest.mark.parametrize(
    "command",
    ["status", "status --json", "contexts", "contexts --json", "report --patience-s 0.1"],
)
def test_commands_show_what_a_hostile_coordinator_reports(
    address: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command.split(), "--coordinator", address])

    out, err = capsys.readouterr()
    assert_harmless(out)
    assert_harmless(err)
    assert "[/x]" in out or "x1b" in out + err or "report" in command
    if "--json" in command:
        assert FORGED in str(json.loads(out))


@pytest.mark.parametrize(
    "command",
    [
        "table ls",
        "table inspect users",
        "checkpoint save",
        "scale parameter-servers 3",
    ],
)
def test_commands_show_what_a_hostile_coordinator_refuses_with(
    address: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), "--coordinator", address, "--timeout-s", "3"]

    assert main(words) != 0

    out, err = capsys.readouterr()
    assert_harmless(out)
    assert_harmless(err)
    assert err


def test_a_terminal_receives_only_the_sequences_of_gradmesh_itself(address: str) -> None:
    """Show the status on a real terminal: colours are ours, all else is escaped."""
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", "gradmesh", "status", "--coordinator", address]
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                return  # the other side is closed
            if not part:
                return
            seen.append(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    process = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, timeout=120, check=False
    )
    os.close(follower)
    reader.join(10)
    os.close(leader)

    shown = b"".join(seen).decode()
    assert process.returncode == 0, shown
    for attack in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\x00", "\b", "\u202e"):
        assert attack not in shown
    assert "\\x1b" in shown


class _Elements(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_status_page_shows_texts_as_texts() -> None:
    served = StatusPage("127.0.0.1:0", lambda: from_message(hostile_status()))
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        with urllib.request.urlopen(f"http://{served.address}/", timeout=120) as answer:
            headers, found = answer.headers, _Elements(answer.read().decode())
    finally:
        served.close()
        thread.join(10)

    assert "script" not in found.tags
    assert "onload" not in found.attributes
    assert "<script>alert(1)</script>" in found.text
    assert "\u202e" not in found.text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("localhost:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("attacker.example:8080", 421),
        ("localhost.attacker.example", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_a_page_of_this_machine_is_not_read_through_another_name(host: str, status: int) -> None:
    """A web site can give its own name this address, and read what a browser gets there."""
    served = StatusPage("127.0.0.1:0", lambda: from_message(hostile_status()))
    thread = threading.Thread(target=served.serve)
    thread.start()
    connection = http.client.HTTPConnection(served.address, timeout=120)
    try:
        connection.request("GET", "/status.json", headers={"Host": host})
        assert connection.getresponse().status == status
    finally:
        connection.close()
        served.close()
        thread.join(10)


def test_the_report_page_shows_texts_as_texts() -> None:
    found = _Elements(page({"job": {"name": TEXT}}, {TEXT: 1.0}, []))

    assert "script" not in found.tags
    assert "onload" not in found.attributes
    assert "<script>alert(1)</script>" in found.text


@pytest.mark.parametrize("pretty", [True, False])
def test_followed_logs_show_lines_of_processes_as_lines(tmp_path: Path, pretty: bool) -> None:
    said = {"ts": "2026-01-02T03:04:05", "level": "info", "message": TEXT, TEXT: TEXT}
    lines = [json.dumps(said), json.dumps({**said, "traceback": TEXT}), TEXT.replace("\n", " ")]
    (tmp_path / "trainer-0.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    stream = io.StringIO()
    screen = LogScreen(stream, pretty=pretty)

    for name, line in LogFiles(tmp_path).newest():
        screen.write(name + TEXT, line)

    assert [c for c in stream.getvalue() if not c.isprintable() and c != "\n"] == []
    assert [line for line in stream.getvalue().split("\n") if line.startswith(FORGED)] == []


@pytest.mark.parametrize("form", ["pretty", "json"])
def test_a_message_is_one_line_of_the_log(form: Any) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging(LogConfig(format=form), TEXT, stream)
        logging.getLogger("x").info("%s", TEXT, extra={"worker": TEXT})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

    assert stream.getvalue().count("\n") == 1
    assert_harmless(stream.getvalue())


def test_a_traceback_in_the_log_is_indented_and_escaped() -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging(LogConfig(format="pretty"), "trainer-0", stream)
        try:
            raise ValueError(f"{TEXT}\n12:00:00 info    trainer-0 all is well")
        except ValueError:
            logging.getLogger("x").exception("failed")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

    first, *rest = stream.getvalue().splitlines()
    assert "failed" in first
    assert all(line.startswith("  ") for line in rest)
    assert all(line.isprintable() for line in rest)


@pytest.mark.parametrize("kind", [BarScreen, LineScreen])
def test_live_views_show_notes_and_titles_as_texts(kind: Any) -> None:
    stream = io.StringIO()
    terminal = Terminal(file=stream, force_terminal=kind is BarScreen, width=400)

    with kind(TEXT, terminal) as screen:
        screen.update(from_message(hostile_status()))
        note = {"msg": TEXT, "levelno": logging.WARNING}
        NoteHandler(screen).handle(logging.makeLogRecord(note))

    for attack in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\x00", "\b", "\u202e", f"\n{FORGED}"):
        assert attack not in stream.getvalue()
    assert "[/x][bold]" in stream.getvalue()


@pytest.mark.parametrize("kind", ["ValueError", "NOT_MEMBER", TEXT])
def test_errors_of_a_remote_function_carry_no_control_characters(kind: str) -> None:
    """A user's own program prints them, so they are escaped when they arrive."""
    arrived = owner_pb2.RemoteError(
        type=kind, message=TEXT * 1000, traceback=TEXT * 1000, worker=TEXT, function=TEXT
    )
    arrived.metadata[TEXT] = TEXT

    error = error_from_proto(arrived, Registry())

    shown = [str(error), error.remote_worker, error.remote_traceback]  # type: ignore[attr-defined]
    assert isinstance(error, RemoteFailure) == (kind == TEXT)
    for text in shown:
        assert [c for c in text if not c.isprintable() and c not in "\n\t"] == []
        assert len(text) < 300_000
