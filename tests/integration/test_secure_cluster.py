"""A whole cluster behind mutual TLS and tokens with roles, all of it from one file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[security]
tls_certificate_file = "certificate.pem"
tls_key_file = "key.pem"
tls_authority_file = "authority.pem"
tls_require_client_certificate = true
certificate_roles = true
token_file = "token"
tokens_file = "tokens"

[job]
steps = 20
batch_size = 64
eval_batches = 2
"""


def gradmesh(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.timeout(600)
def test_cluster_trains_behind_mutual_tls_and_a_token(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1", "admin.role.gradmesh")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    (tmp_path / "token").write_text("open-sesame\n")
    (tmp_path / "tokens").write_text("admin:open-sesame\nreader:just-looking\n")
    (tmp_path / "cluster.toml").write_text(CONFIG)

    size = ("--parameter-servers", "1", "--trainers", "2")
    done = gradmesh(tmp_path, "up", *size, "--config", "cluster.toml", "--exit-when-done")

    assert done.returncode == 0, done.stderr
    assert '"best_auc"' in done.stdout + done.stderr
