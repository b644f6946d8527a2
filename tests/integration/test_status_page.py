"""The status of a cluster as a page: its content, and errors without a coordinator."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.error import HTTPError

import pytest

import gradmesh as gm
from gradmesh.cli.status_page import as_html
from gradmesh.sdk.cluster.status import ClusterStatus, MemberStatus


@contextmanager
def served(coordinator: str) -> Iterator[str]:
    """Run `gradmesh status --serve` and give the page's address; it must end by an interrupt."""
    command = ["status", "--coordinator", coordinator, "--serve", "127.0.0.1:0", "--timeout-s", "1"]
    page = subprocess.Popen(
        [sys.executable, "-m", "gradmesh", *command], stderr=subprocess.PIPE, text=True
    )
    assert page.stderr is not None
    try:
        yield page.stderr.readline().split()[-1]
        page.send_signal(signal.SIGINT)
        assert page.wait(120) == 130
        assert page.stderr.read().strip() == ""
    finally:
        page.kill()
        page.wait(120)
        page.stderr.close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_page_and_json_show_the_members_and_then_that_they_are_gone() -> None:
    with ExitStack() as running, ExitStack() as page_open:
        cluster = running.enter_context(gm.LocalCluster(parameter_servers=2))
        url = page_open.enter_context(served(cluster.address))
        # A cluster is up when its coordinator serves; the servers join soon after.
        patience = time.monotonic() + 30
        while len(json.loads(get(url + "status.json")[1])["members"]) < 2:
            assert time.monotonic() < patience
            time.sleep(0.05)
        code, page = get(url)
        assert code == 200
        assert "parameter-server-0" in page
        assert "parameter-server-1" in page
        code, text = get(url + "status.json")
        members = [member["name"] for member in json.loads(text)["members"]]
        assert (code, members) == (200, ["parameter-server-0", "parameter-server-1"])
        assert get(url + "healthz") == (200, "ok\n")
        assert get(url + "other")[0] == 404

        running.close()
        code, page = get(url)
        while code == 200:  # The status is cached for half a second.
            code, page = get(url)
        assert (code, "coordinator" in page) == (503, True)
        assert "error" in json.loads(get(url + "status.json")[1])


def test_names_are_text_and_nothing_else() -> None:
    bad = "<script>alert(1)</script>"
    member = MemberStatus(name=bad, role=bad, address=bad, incarnation=1, silence_s=0.0)

    page = as_html(ClusterStatus(members=(member,), tables=(bad,), warnings=(bad,)))

    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--serve", "nowhere"], "--serve"),
        (["--serve", "127.0.0.1:0", "--watch"], "excludes --watch and --json"),
    ],
)
def test_wrong_options_of_the_page_are_named(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradmesh", "status", "--coordinator", "127.0.0.1:9", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2
    assert said in done.stderr
