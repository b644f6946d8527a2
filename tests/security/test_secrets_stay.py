"""Tokens and private keys stay on this machine, whatever a job's file names."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradmesh.cli import main
from gradmesh.launch.docker.blueprint import Blueprint
from gradmesh.launch.job_secrets import secret_files
from gradmesh.launch.kubernetes.errors import NotOnKubernetes
from gradmesh.launch.kubernetes.files import files_of
from gradmesh.launch.kubernetes.manifests import Manifests
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError

TOKEN = "a-token-that-must-not-be-seen"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIKJ\n-----END EC PRIVATE KEY-----\n"
JOB = '[job]\nsteps = 3\n[data]\nformat = "criteo"\ntrain = ["clicks.txt"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    (made / "clicks.txt").write_text("1\t2\n")
    (made / "token").write_text(TOKEN)
    (made / "key.pem").write_text(KEY)
    (made / "job.toml").write_text(JOB)
    return made


def rendered(job: Path, secrets: Sequence[Path] = (), **settings: Any) -> str:
    """Return all objects of `train --on kubernetes` as text."""
    files = files_of(job, (), secrets)
    request = ClusterRequest(parameter_servers=1, trainers=1, settings=settings)
    return str(Manifests("one", request, "image", files).objects())


def secret_settings() -> list[str]:
    fields = [field.name for field in dataclasses.fields(SecurityConfig)]
    return [name for name in fields if name.endswith("_file")]


@pytest.mark.parametrize("key", secret_settings())
def test_a_secret_of_the_security_table_is_refused_with_the_remedy(folder: Path, key: str) -> None:
    (folder / "job.toml").write_text(JOB + f'[security]\n{key} = "token"\n')

    with pytest.raises(ConfigError, match=rf"security\.{key}: names a secret.*kubectl.*tls"):
        rendered(folder / "job.toml")


@pytest.mark.parametrize(
    "form", ['security.token_file = "token"', 'security = {token_file="token"}']
)
def test_every_form_of_the_table_is_found(folder: Path, form: str) -> None:
    (folder / "job.toml").write_text(form + "\n" + JOB)

    with pytest.raises(ConfigError, match="token_file"):
        rendered(folder / "job.toml")


def test_settings_that_are_no_secrets_are_sent(folder: Path) -> None:
    (folder / "job.toml").write_text(JOB + "[security]\ncertificate_roles = false\n")

    assert "certificate_roles" in rendered(folder / "job.toml")


@pytest.mark.parametrize("pattern", [".", "*", "token", "**/*", "tok*", "./token"])
def test_a_secret_is_no_data_file(folder: Path, pattern: str) -> None:
    (folder / "key.pem").unlink()
    (folder / "job.toml").write_text(JOB.replace("clicks.txt", pattern))

    with pytest.raises(NotOnKubernetes, match="token is a secret"):
        rendered(folder / "job.toml", [folder / "token"])


def test_a_secret_behind_a_link_is_no_data_file(folder: Path) -> None:
    (folder / "words.txt").symlink_to(folder / "token")
    (folder / "job.toml").write_text(JOB.replace("clicks.txt", "words.txt"))

    with pytest.raises(NotOnKubernetes, match="is a secret"):
        rendered(folder / "job.toml", [folder / "token"])


def test_a_private_key_is_refused_under_any_name(folder: Path) -> None:
    (folder / "key.pem").rename(folder / "words.txt")
    (folder / "job.toml").write_text(JOB.replace("clicks.txt", "words.txt"))

    with pytest.raises(NotOnKubernetes, match="is a secret"):
        rendered(folder / "job.toml")


def test_a_file_outside_the_folder_is_not_sent_through_a_link(folder: Path) -> None:
    (folder.parent / "passwords").write_text(TOKEN)
    (folder / "words.txt").symlink_to(folder.parent / "passwords")
    (folder / "job.toml").write_text(JOB.replace("clicks.txt", "words.txt"))

    with pytest.raises(NotOnKubernetes, match="symbolic link"):
        rendered(folder / "job.toml")


def test_secrets_given_as_flags_are_not_rendered(folder: Path) -> None:
    given = {"security.token_file": folder / "token", "security.tls_key_file": folder / "key.pem"}

    text = rendered(folder / "job.toml", secret_files(given), **given)

    assert "clicks.txt" in text
    for secret in (TOKEN, "PRIVATE KEY", str(folder / "token"), str(folder / "key.pem")):
        assert secret not in text


@pytest.mark.parametrize("command", ["train", "up"])
def test_the_commands_refuse_before_they_create_anything(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str], kubeconfig: Path
) -> None:
    (folder / "job.toml").write_text(JOB + '[security]\ntoken_file = "token"\n')
    job = str(folder / "job.toml")
    arguments = [job] if command == "train" else ["--config", job]

    code = main([command, *arguments, "--on", "kubernetes", "--kubeconfig", str(kubeconfig)])

    assert code == 2
    shown = capsys.readouterr().err
    assert "token_file" in shown
    assert TOKEN not in shown


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Return a kubeconfig of a server that nothing listens on: no call may be needed."""
    file = tmp_path / "kubeconfig"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    return file


def blueprint(job: Path, **settings: Any) -> Blueprint:
    request = ClusterRequest(parameter_servers=1, trainers=1, config=job, settings=settings)
    return Blueprint(engine=None, image="image", request=request)  # type: ignore[arg-type]


def test_containers_do_not_see_secrets_in_the_folder_of_a_job(folder: Path) -> None:
    outside = folder.parent / "token"
    outside.write_text(TOKEN)

    blueprint(folder / "job.toml", **{"security.token_file": outside}).check()
    with pytest.raises(ConfigError, match=r"token_file: names a file in the folder.*--token-file"):
        blueprint(folder / "job.toml", **{"security.token_file": folder / "token"}).check()
    (folder / "job.toml").write_text(JOB + '[security]\ntoken_file = "token"\n')
    with pytest.raises(ConfigError, match="token_file"):
        blueprint(folder / "job.toml").check()


def test_a_job_file_that_cannot_be_read_is_a_config_error(folder: Path) -> None:
    (folder / "job.toml").write_bytes(b"\xff")

    with pytest.raises(ConfigError, match=r"job\.toml"):
        rendered(folder / "job.toml")
