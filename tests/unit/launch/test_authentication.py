from pathlib import Path

import pytest

from gradmesh.launch.authentication import configured, needs_token


@pytest.mark.parametrize(
    ("settings", "environment", "text", "needed"),
    [
        ({}, {}, "", True),
        ({"security.token_file": "t"}, {}, "", False),
        ({"security.tokens_file": Path("t")}, {}, "", False),
        ({"security.insecure": True}, {}, "", False),
        ({"security.insecure": False}, {}, "", True),
        ({}, {"GRADMESH_SECURITY_TOKEN_FILE": "t"}, "", False),
        ({}, {"GRADMESH_SECURITY_TOKEN_FILE": "none"}, "", True),
        ({}, {"GRADMESH_SECURITY_INSECURE": "yes"}, "", False),
        ({}, {}, "[security]\ntls_require_client_certificate = true\n", False),
        ({}, {}, "[security]\ntls_certificate_file = 'c'\n", True),
        ({"security.insecure": False}, {}, "[security]\ninsecure = true\n", True),
    ],
)
def test_a_token_is_made_unless_callers_are_authenticated_or_the_user_declines(
    settings: dict[str, object],
    environment: dict[str, str],
    text: str,
    needed: bool,
    tmp_path: Path,
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)

    assert needs_token(settings, environment, file) is needed


@pytest.mark.parametrize("text", ["not toml", "security = 1"])
def test_an_unusable_file_configures_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)

    assert configured("security", "token_file", {}, {}, file) is None
    assert configured("security", "token_file", {}, {}, tmp_path / "missing") is None
