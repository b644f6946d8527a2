"""docker-compose.yml, read only; tests/e2e starts it."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from gradmesh.launch.sections import cluster_sections
from gradmesh.sdk.process.config import RESERVED
from gradmesh.sdk.process.setting import settings

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "/var/lib/gradmesh/token"
OURS = (
    "token",
    "coordinator",
    "parameter-server-0",
    "parameter-server-1",
    "trainer",
    "report",
    "status-page",
)


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docker-compose.yml").read_text()


@pytest.fixture(scope="module")
def services(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def variables() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_it_is_a_compose_file(text: str) -> None:
    # Expanded first: the reader supports neither merge keys nor variables.
    plain = re.sub(r"\$\{\w+:?-(.*?)\}", r"\1", yaml.safe_dump(yaml.safe_load(text)))

    assert set(compose_spec.PyCompose.from_yaml(plain).service_names()) == {*OURS, "prometheus"}


def test_the_older_compose_reads_it() -> None:
    command = shutil.which("docker-compose")
    if command is None:
        pytest.skip("docker-compose 1.29 is not installed here")
    done = subprocess.run(
        [command, "config", "-q"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_every_variable_is_a_setting(services: dict[str, Any]) -> None:
    known = {s.variable for section in cluster_sections() for s in settings(section)} | RESERVED
    named = set(services["trainer"]["environment"]) | set(variables())

    assert {name for name in named if name.startswith("GRADMESH_")} - known == set()


def test_variables_from_the_shell_have_a_default_in_the_file(services: dict[str, Any]) -> None:
    given = services["trainer"]["environment"]

    assert {name for name, value in given.items() if value is None} - set(variables()) == set()


def test_processes_are_hardened_and_wait_for_each_other(services: dict[str, Any]) -> None:
    for name in OURS:
        service = services[name]

        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        restart = ("no",) if name == "token" else ("unless-stopped", "on-failure")
        assert service["restart"] in restart, name
        assert int(service["stop_grace_period"].rstrip("s")) > 10, name
        waits = service.get("depends_on", {})
        if name in ("token", "coordinator"):
            continue
        assert all(w == {"condition": "service_healthy"} for w in waits.values()), name
        assert "coordinator" in waits, name


def test_a_token_is_made_before_any_process_starts(services: dict[str, Any]) -> None:
    file = f"{TOKEN}/token"
    assert services["token"]["command"] == ["token", file]
    assert services["token"]["volumes"] == [f"token:{TOKEN}"]
    waits = services["coordinator"]["depends_on"]
    assert waits == {"token": {"condition": "service_completed_successfully"}}
    for name in OURS[1:]:
        given = services[name]["environment"]
        assert given["GRADMESH_SECURITY_TOKEN_FILE"] == file, name
        assert f"token:{TOKEN}:ro" in services[name]["volumes"], name
        assert not {"GRADMESH_SECURITY_INSECURE", "GRADMESH_SECURITY_TOKENS_FILE"} & set(given)
    for image in ("Dockerfile", "cuda.Dockerfile"):
        # A new volume has the owner and the mode of the image's folder.
        text = (ROOT / "deploy/docker" / image).read_text()
        assert re.search(rf"install -d -o 10001 -g 10001 -m 0700 .*{TOKEN}\b", text)


def test_nothing_but_this_machine_reaches_a_published_port(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_servers_have_an_identity_and_rows_of_their_own(services: dict[str, Any]) -> None:
    for name in OURS[2:4]:
        command, volumes = services[name]["command"], services[name]["volumes"]

        assert command[command.index("--name") + 1] == name
        assert command[command.index("--advertise") + 1] == f"{name}:7071"
        assert volumes[0] == f"{name}:/var/lib/gradmesh/state"


def test_prometheus_scrapes_every_service(services: dict[str, Any]) -> None:
    config = yaml.safe_load((ROOT / "deploy/docker/prometheus.yml").read_text())
    (asked,) = config["scrape_configs"][0]["dns_sd_configs"]
    image = services["prometheus"]["image"]

    assert sorted(asked["names"]) == sorted(set(OURS) - {"token", "report", "status-page"})
    assert asked["port"] == 9090
    assert services["prometheus"]["profiles"] == ["monitoring"]
    assert re.search(r":v\d+\.\d+\.\d+\}$", image)
