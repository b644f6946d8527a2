"""The Job that makes the tokens, with the rights in its manifest, on the emulated API server."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradmesh.launch.kubernetes.bootstrap import RefusedByApi, SecretsApi, main, make_tokens
from gradmesh.launch.kubernetes.secrets import token_in
from tests.deploy.emulator.resources import CORE
from tests.deploy.emulator.server import ApiServer
from tests.deploy.manifests import OVERLAYS, Object, named, needs_kubectl, render

pytestmark = needs_kubectl

SECRETS = next(one for one in CORE if one.kind == "Secret")
NAMESPACES = next(one for one in CORE if one.kind == "Namespace")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gradmesh"}}
    server.objects.create(NAMESPACES, "", namespace)
    server.roles["job"] = [named(render(OVERLAYS[0]), "Role", "gradmesh-token")]
    yield server
    server.close()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("job")
    (tmp_path / "namespace").write_text("gradmesh")
    return tmp_path


def held(api: ApiServer) -> dict[str, Object]:
    return {made["metadata"]["name"]: made for made in api.objects.list("secrets", "gradmesh")}


def test_tokens_are_made_once(api: ApiServer, account: Path) -> None:
    arguments = ["gradmesh", "--server", api.url, "--account", str(account)]
    assert main(arguments) == 0
    first = held(api)
    assert main(arguments) == 0

    assert held(api) == first
    assert first.keys() == {"gradmesh-token", "gradmesh-reader-token"}
    tokens = {name: token_in(secret) for name, secret in first.items()}
    assert len(set(tokens.values())) == 2
    assert all(len(token) >= 40 for token in tokens.values())
    accepted = base64.b64decode(first["gradmesh-token"]["data"]["tokens"]).decode()
    assert accepted.startswith(f"admin:{tokens['gradmesh-token']}\nreader:sha256:")
    # No other right was needed.
    assert api.used == {("create", "", "secrets"), ("get", "", "secrets")}


def test_tokens_are_completed_after_an_interruption(api: ApiServer, account: Path) -> None:
    secrets = SecretsApi(api.url, account)
    make_tokens(secrets, "gradmesh")
    reader = held(api)["gradmesh-reader-token"]
    api.objects.delete(SECRETS, "gradmesh", "gradmesh-token", "")

    make_tokens(secrets, "gradmesh")

    assert held(api)["gradmesh-reader-token"] == reader
    assert "gradmesh-token" in held(api)


def test_the_rights_are_for_these_secrets_only(api: ApiServer, account: Path) -> None:
    another = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "another"},
        "data": {"token": base64.b64encode(b"a").decode()},
    }
    api.objects.create(SECRETS, "gradmesh", another)

    with pytest.raises(RefusedByApi, match="refused to read secret another: status 403"):
        SecretsApi(api.url, account).create_once(another)


def test_an_account_without_rights_ends_with_the_reason(api: ApiServer, account: Path) -> None:
    api.roles["job"] = []

    with pytest.raises(RefusedByApi, match="refused to create secret gradmesh-reader-token"):
        make_tokens(SecretsApi(api.url, account), "gradmesh", patience_s=0)
    assert held(api) == {}
