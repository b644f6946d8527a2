import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.child import ChildSpec
from gradmesh.launch.supervisor import Outcome, RestartPolicy, Supervisor

Make = Callable[..., ChildSpec]
Supervise = Callable[..., Supervisor]
Until = Callable[[Callable[[], bool]], None]

QUICK = RestartPolicy(first_s=0.01, most_s=0.01, most_in_a_row=2)

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def test_cluster_ends_when_all_work_is_done(spec: Make, supervise: Supervise) -> None:
    specs = [spec("server"), spec("a", "pass", finite=True), spec("b", "pass", finite=True)]

    supervisor = supervise(specs, until_done=True)

    assert supervisor.wait(120) == Outcome(0, "all work is done")


def test_servers_stay_when_the_work_is_done(spec: Make, supervise: Supervise, until: Until) -> None:
    supervisor = supervise([spec("server"), spec("a", "pass", finite=True)])

    until(lambda: [c["state"] for c in supervisor.describe()] == ["running", "done"])

    assert supervisor.wait(0.1) is None


def test_dead_child_is_restarted(
    spec: Make, supervise: Supervise, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "flag"
    code = (
        f"import pathlib, sys; p = pathlib.Path({str(flag)!r}); "
        "again = p.exists(); p.touch(); sys.exit(0 if again else 5)"
    )

    supervisor = supervise([spec("a", code, finite=True)], until_done=True, policy=QUICK)

    assert supervisor.wait(120) == Outcome(0, "all work is done")
    assert supervisor.describe()[0]["restarts"] == 1
    assert "a exited with code 5, restarting" in caplog.text


def test_server_that_leaves_by_itself_is_restarted(
    spec: Make, supervise: Supervise, until: Until
) -> None:
    supervisor = supervise([spec("server", "pass")], policy=QUICK)

    until(lambda: supervisor.describe()[0]["restarts"] > 0)

    outcome = supervisor.wait(120)
    assert outcome is not None
    assert (outcome.exit_code, outcome.child) == (4, "server")


def test_supervisor_gives_up_after_too_many_deaths(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise([spec("a", "raise SystemExit(9)", finite=True)], policy=QUICK)

    reason = "a exited with code 9, 3 times in a row; see its log"
    assert supervisor.wait(120) == Outcome(4, reason, "a")


def test_refused_configuration_is_not_tried_again(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise([spec("server"), spec("a", "raise SystemExit(2)", finite=True)])

    outcome = supervisor.wait(120)

    assert outcome is not None
    assert (outcome.exit_code, outcome.child) == (2, "a")
    assert [c["restarts"] for c in supervisor.describe()] == [0, 0]


def test_children_wait_for_those_before_them(
    spec: Make, supervise: Supervise, tmp_path: Path, until: Until
) -> None:
    file = tmp_path / "address"

    supervisor = supervise([spec("first", ready=file.exists), spec("second")])
    until(lambda: supervisor.describe()[0]["state"] == "running")
    before = supervisor.describe()[1]["state"]
    file.touch()
    until(lambda: supervisor.all_ready)

    assert before == "waiting"
    assert supervisor.describe()[1]["state"] == "running"


def test_child_that_never_gets_ready_ends_the_cluster(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise([spec("first", ready=lambda: False), spec("second")], ready_s=0.2)

    outcome = supervisor.wait(120)

    assert outcome == Outcome(4, "first was not ready within 0.2 s; see its log", "first")


def test_children_stop_role_by_role_in_reverse(
    spec: Make, supervise: Supervise, until: Until
) -> None:
    lines: list[tuple[str, str]] = []
    specs = [spec("hub", role="hub"), spec("ps", role="ps"), spec("tr", role="tr")]
    supervisor = supervise(specs, on_line=lambda name, line: lines.append((name, line)))
    until(lambda: len(lines) == 3)

    supervisor.request_stop()

    assert supervisor.wait(120) == Outcome(0, "stopped on request")
    assert [name for name, line in lines if line == "drained"] == ["tr", "ps", "hub"]


def test_child_that_does_not_drain_is_killed(
    spec: Make, supervise: Supervise, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    supervisor = supervise(
        [spec("a", STUBBORN)], grace_s=0.2, on_line=lambda name, line: lines.append(line)
    )
    until(lambda: lines == ["ready"])

    supervisor.request_stop()

    assert supervisor.wait(120) == Outcome(0, "stopped on request")
    assert "a did not drain, killed" in caplog.text


def test_kill_does_not_wait_for_the_drain(spec: Make, supervise: Supervise, until: Until) -> None:
    lines: list[str] = []
    supervisor = supervise(
        [spec("a", STUBBORN)], grace_s=3600, on_line=lambda name, line: lines.append(line)
    )
    until(lambda: lines == ["ready"])
    supervisor.request_stop()

    supervisor.kill()

    assert supervisor.wait(120) is not None


def test_changes_are_reported(spec: Make, supervise: Supervise) -> None:
    seen: list[list[dict[str, Any]]] = []

    supervisor = supervise([spec("a", "pass", finite=True)], until_done=True, on_change=seen.append)

    assert supervisor.wait(120) is not None
    states = [children[0]["state"] for children in seen]
    assert states[0] == "running"
    assert states[-1] == "done"
    assert isinstance(seen[0][0]["pid"], int)


def test_command_that_cannot_be_run_ends_the_cluster(supervise: Supervise, tmp_path: Path) -> None:
    missing = ChildSpec(name="a", role="r", argv=lambda: (str(tmp_path / "none"), sys.executable))

    outcome = supervise([missing]).wait(120)

    assert outcome is not None
    assert (outcome.exit_code, outcome.child) == (4, "a")
    assert "cannot be started" in outcome.reason


def test_children_are_added_beside_those_of_their_role(
    spec: Make, supervise: Supervise, until: Until
) -> None:
    supervisor = supervise([spec("a-0", role="a"), spec("b-0", role="b")])
    until(lambda: supervisor.all_ready)

    supervisor.change([spec("a-1", role="a")], ())

    names = ["a-0", "a-1", "b-0"]
    until(lambda: [child["name"] for child in supervisor.describe()] == names)
    until(lambda: all(child["state"] == "running" for child in supervisor.describe()))


def test_a_child_that_is_not_needed_is_not_restarted(
    spec: Make, supervise: Supervise, until: Until
) -> None:
    supervisor = supervise([spec("steady"), spec("emptied", "raise SystemExit(5)")])

    until(lambda: [child["name"] for child in supervisor.describe()] == ["steady"])

    assert supervisor.describe()[0]["restarts"] == 0


def test_a_retired_child_that_does_not_exit_is_terminated(
    spec: Make, supervise: Supervise, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradmesh.launch.supervisor._RETIRE_S", 0.1)
    supervisor = supervise([spec("steady"), spec("spare")])
    until(lambda: supervisor.all_ready)
    until(lambda: all(child["state"] == "running" for child in supervisor.describe()))

    supervisor.change((), {"spare", "nobody"})

    until(lambda: [child["name"] for child in supervisor.describe()] == ["steady"])


def test_delays_double_up_to_a_limit_then_it_gives_up() -> None:
    policy = RestartPolicy(first_s=0.5, most_s=10, most_in_a_row=6)

    delays = [policy.delay_s(deaths) for deaths in range(1, 8)]

    assert delays == [0.5, 1, 2, 4, 8, 10, None]


def test_a_healthy_period_resets_the_restart_count() -> None:
    policy = RestartPolicy(healthy_s=30)

    assert policy.deaths(5, lived_s=29) == 6
    assert policy.deaths(5, lived_s=30) == 1


def test_many_deaths_do_not_overflow() -> None:
    assert RestartPolicy(most_in_a_row=10**9).delay_s(10**6) == 10.0
