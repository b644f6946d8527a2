"""Clusters of one machine: a token that nobody types, and files that only their user can read."""

import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import gradmesh as gm
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.local_token import PublishedToken, find_token
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.private import UnsafeFolder, make_private_folder
from gradmesh.sdk.process.setting import ConfigError

SERVICES = [
    *coordinator_pb2.DESCRIPTOR.services_by_name.values(),
    *parameter_server_pb2.DESCRIPTOR.services_by_name.values(),
    *owner_pb2.DESCRIPTOR.services_by_name.values(),
]


def gradmesh(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command with a umask that closes nothing."""
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=folder,
        umask=0,
    )


def readable_by_others(folder: Path) -> list[str]:
    """Return folder and files, with their modes, that others may enter or read."""
    seen = [(path, path.lstat().st_mode) for path in (folder, *folder.rglob("*"))]
    return [
        f"{stat.filemode(mode)} {path}"
        for path, mode in seen
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & 0o077
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gm.LocalCluster]:
    before = os.umask(0)
    try:
        state = tmp_path_factory.mktemp("cluster") / "state"
        with gm.LocalCluster(parameter_servers=1, state=state) as running:
            yield running
    finally:
        os.umask(before)


@pytest.fixture
def addresses(cluster: gm.LocalCluster) -> list[str]:
    """The coordinator's address and the parameter server's."""
    servers: list[str] = []

    def joined() -> bool:
        members = fetch(cluster.address, SecurityConfig(), 20.0).members
        servers[:] = [m.address for m in members if m.role == "parameter-server"]
        return bool(servers)

    wait_for(joined)
    return [cluster.address, *servers]


def test_a_stranger_without_the_token_can_call_nothing(addresses: list[str]) -> None:
    answers = {}
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            for service in SERVICES:
                for name in methods_of(service):
                    call = channel.unary_unary(f"/{service.full_name}/{name}")
                    with pytest.raises(grpc.RpcError) as refused:
                        call(b"", timeout=120)
                    answers[address, name] = refused.value.code()

    # A process does not serve the services of other roles.
    served = {k: code for k, code in answers.items() if code is not grpc.StatusCode.UNIMPLEMENTED}
    assert len(served) > 40
    assert set(served.values()) == {grpc.StatusCode.UNAUTHENTICATED}


@pytest.mark.parametrize("token", [b"", b"Bearer", b"Bearer \xc3\xa4", b"Bearer guessed"])
def test_a_wrong_token_opens_nothing(cluster: gm.LocalCluster, token: bytes) -> None:
    with grpc.insecure_channel(cluster.address) as channel:
        call = channel.unary_unary("/gradmesh.coordinator.v1.CoordinatorService/GetStatus")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=120, metadata=[("authorization", token.decode("latin-1"))])

    assert refused.value.code() in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INTERNAL,  # gRPC itself refuses bytes that no header may have
    )


def test_files_of_a_local_cluster_are_private(cluster: gm.LocalCluster) -> None:
    folder = cluster.folder.path

    assert readable_by_others(folder) == []
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"token", "coordinator.sqlite", "coordinator.log", "cluster.json"} <= names
    published = find_token(cluster.address)
    assert published is not None
    assert published.parent.name.startswith("gradmesh")
    assert stat.S_IMODE(published.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(published.stat().st_mode) == 0o600


def test_each_cluster_has_a_token_of_its_own(cluster: gm.LocalCluster, tmp_path: Path) -> None:
    first = cluster.folder.token_file.read_text().strip()
    assert len(first) >= 40
    with gm.LocalCluster(parameter_servers=1, state=tmp_path) as other:
        assert other.folder.token_file.read_text().strip() != first
        address = other.address

    assert find_token(address) is None
    assert not (tmp_path / "token").exists()


def test_another_process_needs_the_address_only(cluster: gm.LocalCluster) -> None:
    program = (
        f"import gradmesh as gm\nwith gm.connect({cluster.address!r}) as mesh:\n    print(mesh)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    port = cluster.address.rpartition(":")[2]
    assert gradmesh("status", "--coordinator", f"localhost:{port}").returncode == 0


def test_a_worker_beside_the_cluster_requires_the_token_too(cluster: gm.LocalCluster) -> None:
    node = gm.rpc.init("beside", coordinator=cluster.address, install=False)
    try:
        assert node.server is not None
        with grpc.insecure_channel(node.server.address) as channel:
            call = channel.unary_unary("/gradmesh.owner.v1.OwnerService/Describe")
            with pytest.raises(grpc.RpcError, match="with a ticket"):
                call(b"", timeout=120)
    finally:
        node.leave(5.0)


def test_a_reader_needs_the_address_only(cluster: gm.LocalCluster) -> None:
    with gm.TableReader(cluster.address) as reader:
        assert isinstance(reader.tables(), dict)


def test_files_of_up_are_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o777)
    up = gradmesh(
        "up", "--detach", "--parameter-servers", "1", "--trainers", "0", "--state", str(state)
    )
    try:
        assert up.returncode == 0, up.stderr
        assert readable_by_others(state) == []
        assert (state / "logs" / "supervisor.log").exists()
        (address,) = re.findall(r"127\.0\.0\.1:\d+", up.stdout)
        assert gradmesh("status", "--coordinator", address).returncode == 0
        assert gradmesh("status", "--state", str(state)).returncode == 0
    finally:
        down = gradmesh("down", "--state", str(state))
    assert down.returncode == 0, down.stderr
    assert not (state / "token").exists()
    assert readable_by_others(state) == []


@pytest.mark.timeout(600)
def test_files_of_demo_are_private() -> None:
    demo = gradmesh("demo", "--steps", "30", "--trainers", "1", "--keep-logs")

    assert demo.returncode == 0, demo.stderr
    (logs,) = re.findall(r"logs are in (\S+)", demo.stdout.replace("\n", ""))
    state = Path(logs).parent
    assert (state / "logs" / "trainer-0.log").exists()
    assert readable_by_others(state) == []
    for path in sorted(state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    state.rmdir()


@pytest.mark.timeout(600)
def test_files_of_train_are_private_but_its_results(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        "[coordinator]\ntrainers = 1\nparameter_servers = 1\n"
        "[job]\nsteps = 5\nbatch_size = 16\neval_batches = 1\n[data]\nrows = [50, 20]\n"
    )

    train = gradmesh("train", str(job), "--keep-logs", folder=tmp_path)

    assert train.returncode == 0, train.stderr
    assert (tmp_path / "job" / "cluster" / "logs" / "trainer-0.log").exists()
    assert readable_by_others(tmp_path / "job" / "cluster") == []
    # Report and model are the user's, with the modes that the umask gives.
    assert stat.S_IMODE((tmp_path / "job" / "report.json").stat().st_mode) & 0o044


@pytest.mark.parametrize("role", ["coordinator", "parameter-server", "trainer", "worker"])
def test_no_process_serves_other_machines_without_authentication(role: str) -> None:
    extra = () if role == "coordinator" else ("--advertise", "127.0.0.1:1")

    for listen in ("0.0.0.0:0", "[::]:0", "192.0.2.1:7070", "some-host:7070"):
        refused = gradmesh(role, "--listen", listen, *extra)
        assert refused.returncode == 2, refused.stderr
        assert "can be reached from other machines" in refused.stderr
        assert "--insecure" in refused.stderr


def test_no_node_of_the_sdk_serves_other_machines_without_authentication() -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        gm.rpc.init(
            "w",
            coordinator="127.0.0.1:1",
            listen="0.0.0.0:0",
            advertise="127.0.0.1:2",
            install=False,
        )


def test_insecure_must_be_typed(tmp_path: Path) -> None:
    address = tmp_path / "address"
    arguments = ["--listen", "0.0.0.0:0", "--insecure", "--address-file", str(address)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gradmesh", "coordinator", *arguments, "--lifeline"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: address.exists() or process.poll() is not None)
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate()


def test_an_insecure_local_cluster_makes_no_token() -> None:
    with (
        gm.LocalCluster(parameter_servers=1, settings={"security.insecure": True}) as cluster,
        gm.connect(cluster.address),
    ):
        assert find_token(cluster.address) is None
        assert not cluster.folder.token_file.exists()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for published tokens that no other test uses."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    return tmp_path / "gradmesh"


def test_a_token_is_found_while_its_cluster_lives(session: Path) -> None:
    published = PublishedToken("127.0.0.1:4711", "t0ken")
    file = published.path
    assert file.parent == session

    assert find_token("127.0.0.1:4711") == find_token("localhost:4711") == file
    assert file.read_text() == "t0ken\n"
    for other in ("127.0.0.1:4712", "127.0.0.2:4711", "192.0.2.1:4711", "no address"):
        assert find_token(other) is None
    published.close()
    published.close()
    assert not file.exists()


def test_a_token_of_a_killed_cluster_is_ignored_and_removed(session: Path) -> None:
    program = (
        "import os, signal\n"
        "from gradmesh.sdk.process.local_token import PublishedToken\n"
        "kept = PublishedToken('127.0.0.1:4711', 'stale')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    (stale,) = session.iterdir()

    assert find_token("127.0.0.1:4711") is None
    PublishedToken("127.0.0.1:4712", "new").close()
    assert not stale.exists()


def test_a_cluster_removes_no_token_but_its_own(session: Path) -> None:
    first = PublishedToken("127.0.0.1:4711", "first")
    second = PublishedToken("127.0.0.1:4711", "second")

    assert find_token("127.0.0.1:4711") == second.path, "the newest"
    second.close()
    assert find_token("127.0.0.1:4711") == first.path
    first.close()
    assert find_token("127.0.0.1:4711") is None


def test_a_token_of_a_cluster_elsewhere_is_found_until_this_process_ends(session: Path) -> None:
    program = (
        "from gradmesh.sdk.process.local_token import find_token, publish_until_exit\n"
        "for token in ('first', 'first', 'second'):\n"
        "    publish_until_exit('127.0.0.1:4711', token)\n"
        "print(find_token('127.0.0.1:4711').read_text())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )

    assert done.stdout.strip() == "second", done.stderr
    assert list(session.iterdir()) == []


def test_a_planted_token_is_ignored(session: Path, tmp_path: Path) -> None:
    name = "127.0.0.1:4711"
    published = PublishedToken(name, "t0ken")
    file = published.path
    try:
        file.chmod(0o640)
        assert find_token(name) is None, "others can read it"
        file.chmod(0o600)
        session.chmod(0o770)
        assert find_token(name) is None, "others can write to its folder"
        session.chmod(0o700)
        assert find_token(name) == file
        moved = tmp_path / "elsewhere"
        file.rename(moved)
        file.symlink_to(moved)
        assert find_token(name) is None, "a link"
        file.unlink()
        os.mkfifo(file, 0o600)
        assert find_token(name) is None, "a pipe"
        file.unlink()
        session.rename(tmp_path / "real")
        session.symlink_to(tmp_path / "real")
        assert find_token(name) is None, "a link to the folder"
        # Another folder is taken in place of one that others control.
        fallback = PublishedToken(name, "second")
        found = find_token(name)
        assert found is not None
        assert found.parent != session
        fallback.close()
    finally:
        published.close()


def test_a_folder_of_another_user_or_of_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(UnsafeFolder, match="shared by several users"):
        make_private_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777

    theirs = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: theirs)
    with pytest.raises(UnsafeFolder, match="belongs to user"):
        make_private_folder(tmp_path)


def wait_for(condition: Callable[[], bool], timeout_s: float = 50.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        threading.Event().wait(0.05)
