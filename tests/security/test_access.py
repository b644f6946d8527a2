"""Rights of roles: every rpc as every role by every way in, by token and by certificate."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry

from gradmesh.cli.access_reference import ALL_WAYS, ways_of
from gradmesh.protos import errors
from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.rpcs import ACCESS, HOT, ROLES
from gradmesh.sdk.process.network import LaneChoice, SecurityConfig
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.server import Server

SERVICES = [
    next(iter(module.DESCRIPTOR.services_by_name.values()))
    for module in (autograd_pb2, coordinator_pb2, owner_pb2, parameter_server_pb2)
]
# Exchange is a stream, which the way "stream" opens: it carries the hot rpcs.
EXCHANGE = "gradmesh.owner.v1.OwnerService/Exchange"
METHODS = [m for s in SERVICES for m in methods_of(s).values() if m.path[1:] != EXCHANGE]


class Anything:
    """Serves every rpc."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def __getattr__(self, verb: str) -> Callable[[Any, Any], Any]:
        def serve(request: Any, call: Any) -> Any:
            self.calls[verb, call.caller.role] += 1
            raise errors.TableNotFound("reached")

        return serve


def token_of(role: str) -> str:
    return f"secret-of-{role}"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    lines = [f"{role}:{token_of(role)}" for role in ROLES]
    # The reader's token is configured by its checksum only.
    summed = hashlib.sha256(token_of("reader").encode()).hexdigest()
    lines[ROLES.index("reader")] = f"reader: sha256:{summed.upper()}  # for the web shop"
    file = tmp_path / "tokens"
    file.write_text("# who may call\n\n" + "\n".join(lines) + "\n")
    return file


@pytest.fixture
def anything() -> Anything:
    return Anything()


@pytest.fixture
def start(anything: Anything) -> Iterator[Callable[[SecurityConfig], Server]]:
    servers: list[Server] = []

    def begin(security: SecurityConfig) -> Server:
        server = Server(dict.fromkeys(SERVICES, anything), listen="127.0.0.1:0", security=security)
        server.start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.drain(0.1)


def shows(tmp_path: Path, token: str) -> SecurityConfig:
    file = tmp_path / f"token-{hashlib.sha256(token.encode()).hexdigest()[:8]}"
    file.write_text(token + "\n")
    return SecurityConfig(token_file=file)


def ask(channel: Channel, method: Method) -> str:
    """Call an rpc with an empty request; return the reason of its error."""
    message = method.request_type()
    request: Any = Frame(message, []) if method.bulk[0] else message
    try:
        channel.call(method, request, Deadline.after(10))
    except errors.MeshError as error:
        return error.reason
    return "OK"


def lanes_used(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Return the lanes that calls have taken, by the paths of their rpcs."""
    found = defaultdict(set)
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name == "gradmesh_rpc_client_calls_total":
                found[sample.labels["rpc"].removeprefix("/")].add(sample.labels["lane"])
    return found


@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("role", ROLES)
def test_every_rpc_by_every_way_is_for_the_roles_of_the_table(
    role: str, way: LaneChoice, start: Any, tokens: Path, tmp_path: Path, anything: Anything
) -> None:
    registry = CollectorRegistry()
    metrics, security = RpcMetrics("client", registry), shows(tmp_path, token_of(role))
    server = start(SecurityConfig(tokens_file=tokens))
    methods = [method for method in METHODS if way in ways_of(method.path[1:])]

    with Channel(server.address, "x", security=security, lane=way, metrics=metrics) as ch:
        found = {method.path[1:]: ask(ch, method) for method in methods}

    allowed = {path for path, reason in found.items() if reason != "FORBIDDEN"}
    assert allowed == {path for path in found if role in ACCESS[path]}
    reached = {verb for verb, _ in anything.calls}
    # The server itself serves OpenLane.
    served = [m for m in methods if role in ACCESS[m.path[1:]] and m.name != "OpenLane"]
    assert reached == {method.verb for method in served}
    assert {seen for _, seen in anything.calls} <= {role}
    used = lanes_used(registry)
    assert [path for path in found if path in HOT and used[path] != {way}] == []


def test_every_rpc_and_every_way_is_tried() -> None:
    """The table, the contract and the tests above have the same rpcs; each hot one has a lane."""
    contract = {m.path[1:] for s in SERVICES for m in methods_of(s).values()}
    tried = {(m.path[1:], way) for way in ALL_WAYS for m in METHODS if way in ways_of(m.path[1:])}

    assert set(ACCESS) == contract
    assert {path for path, _ in tried} == contract - {EXCHANGE}
    assert {path for path, way in tried if way != "unary"} == set(HOT)
    assert all(ACCESS[path] <= set(ROLES) for path in contract)


def test_without_a_token_of_the_file_nothing_is_called(
    start: Any, tokens: Path, tmp_path: Path, anything: Anything
) -> None:
    server = start(SecurityConfig(tokens_file=tokens))
    wrong = [SecurityConfig(), shows(tmp_path, "secret-of-nobody"), shows(tmp_path, "trainer")]

    for security in wrong:
        with Channel(server.address, "x", security=security) as channel:
            assert {ask(channel, method) for method in METHODS} == {"UNAUTHENTICATED"}

    assert not anything.calls


def test_one_token_for_all_admits_to_everything(
    start: Any, tmp_path: Path, anything: Anything
) -> None:
    security = shows(tmp_path, "open-sesame")
    server = start(security)

    with Channel(server.address, "x", security=security, lane="unary") as channel:
        assert "FORBIDDEN" not in {ask(channel, method) for method in METHODS}

    assert {role for _, role in anything.calls} == {"admin"}


def certificate(ca: trustme.CA, folder: Path, *names: str) -> dict[str, Path]:
    folder.mkdir(parents=True)
    issued = ca.issue_cert("127.0.0.1", "localhost", *names)
    issued.private_key_pem.write_to_path(folder / "key")
    issued.cert_chain_pems[0].write_to_path(folder / "certificate")
    ca.cert_pem.write_to_path(folder / "authority")
    return {
        "tls_key_file": folder / "key",
        "tls_certificate_file": folder / "certificate",
        "tls_authority_file": folder / "authority",
    }


@pytest.fixture
def certified(start: Any, tmp_path: Path) -> Any:
    """A server that requires certificates with roles, and the files of a client with some names."""
    ca = trustme.CA()
    own = certificate(ca, tmp_path / "server", "parameter-server.role.gradmesh")
    mutual = {"tls_require_client_certificate": True, "certificate_roles": True}

    def make(*names: str, **more: Any) -> tuple[Server, dict[str, Path]]:
        server = start(SecurityConfig(**own, **mutual, **more))
        return server, certificate(ca, tmp_path / "-".join(["client", *names]), *names)

    return make


@pytest.mark.parametrize("role", ["trainer", "reader", "admin"])
def test_a_certificate_names_the_role(certified: Any, role: str, anything: Anything) -> None:
    server, files = certified(f"{role}.role.gradmesh")

    for lane in ("unary", "tcp"):
        with Channel(server.address, "x", security=SecurityConfig(**files), lane=lane) as channel:
            found = {method.path[1:]: ask(channel, method) for method in METHODS}
        allowed = {path for path, reason in found.items() if reason != "FORBIDDEN"}
        assert allowed == {path for path in found if role in ACCESS[path]}

    assert {seen for _, seen in anything.calls} == {role}


@pytest.mark.parametrize(
    "names", [(), ("boss.role.gradmesh",), ("trainer.role.gradmesh", "admin.role.gradmesh")]
)
def test_a_certificate_without_exactly_one_role_is_refused(
    certified: Any, names: tuple[str, ...], anything: Anything
) -> None:
    server, files = certified(*names)

    with Channel(server.address, "x", security=SecurityConfig(**files), lane="unary") as channel:
        assert {ask(channel, method) for method in METHODS} == {"FORBIDDEN"}

    assert not anything.calls


def test_token_and_certificate_must_agree(
    certified: Any, tokens: Path, tmp_path: Path, anything: Anything
) -> None:
    server, files = certified("trainer.role.gradmesh", tokens_file=tokens)
    found = {}

    for role in ("trainer", "reader", "admin"):
        token = shows(tmp_path, token_of(role)).token_file
        security = SecurityConfig(**files, token_file=token)
        with Channel(server.address, "x", security=security, lane="unary") as channel:
            found[role] = {m.path[1:] for m in METHODS if ask(channel, m) != "FORBIDDEN"}

    trainers = {m.path[1:] for m in METHODS if "trainer" in ACCESS[m.path[1:]]}
    assert found == {"trainer": trainers, "reader": set(), "admin": trainers}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no token"),
        ("# nothing\n", "holds no token"),
        ("trainer:good\nboss:token\n", "line 2 is not role:token"),
        ("trainer\n", "line 1 is not"),
        ("trainer:two words\n", "line 1 is not"),
        ("trainer:sha256:abc\n", "line 1 is not"),
    ],
)
def test_a_file_that_holds_no_tokens_is_refused(
    text: str, problem: str, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)

    with pytest.raises(ConfigError, match=problem):
        start(SecurityConfig(tokens_file=file))
