"""Make the tokens of a cluster once: `python -m gradmesh.launch.kubernetes.bootstrap NAME`.

It runs in a Job of deploy/base, whose account may create Secrets and read these two. It uses the
standard library only, because the image has no client of the Kubernetes API.
"""

import argparse
import http.client
import json
import logging
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from gradmesh.launch.kubernetes.secrets import reader_secret, token_secret

_log = logging.getLogger(__name__)

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CALL_S = 10.0
# Rights that were granted a moment ago may not be in effect yet.
_PATIENCE_S = 60.0
_PAUSE_S = 2.0
_CREATED, _CONFLICT, _OK = 201, 409, 200


@final
class RefusedByApi(Exception):
    """The API server refused a request.

    Args:
        action: The request.
        status: HTTP status of the answer.
    """

    def __init__(self, action: str, status: int) -> None:
        super().__init__(f"the API server refused to {action}: status {status}")


@final
class SecretsApi:
    """The Secrets of the namespace of a service account.

    Args:
        server: URL of the API server.
        account: Folder with the account's token, namespace and authority.
    """

    def __init__(self, server: str, account: Path) -> None:
        self._server = urlsplit(server)
        self._account = account
        namespace = (account / "namespace").read_text(encoding="ascii").strip()
        self._path = f"/api/v1/namespaces/{namespace}/secrets"

    def create_once(self, secret: dict[str, Any]) -> dict[str, Any]:
        """Create a Secret; return it, or the one of its name that exists.

        Raises:
            RefusedByApi: The account may not.
            OSError: The server does not answer.
        """
        name = secret["metadata"]["name"]
        status, made = self._call("POST", self._path, secret)
        if status == _CREATED:
            return made
        if status != _CONFLICT:
            raise RefusedByApi(f"create secret {name}", status)
        status, made = self._call("GET", f"{self._path}/{name}", None)
        if status != _OK:
            raise RefusedByApi(f"read secret {name}", status)
        return made

    def _call(self, verb: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        connection = self._connect()
        try:
            headers = {
                "Authorization": f"Bearer {(self._account / 'token').read_text().strip()}",
                "Content-Type": "application/json",
            }
            text = None if body is None else json.dumps(body)
            connection.request(verb, path, text, headers)
            answer = connection.getresponse()
            read: dict[str, Any] = json.loads(answer.read() or b"{}")
            return answer.status, read
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._server.hostname or "", self._server.port
        if self._server.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_CALL_S)
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        return http.client.HTTPSConnection(host, port, timeout=_CALL_S, context=context)


def make_tokens(api: SecretsApi, cluster: str, patience_s: float = _PATIENCE_S) -> None:
    """Create both Secrets of a cluster, unless they exist.

    Args:
        api: The namespace's Secrets.
        cluster: Name of the cluster.
        patience_s: How long to repeat what fails.

    Raises:
        RefusedByApi: The account may not.
        OSError: The server does not answer.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            # The pods wait for the second one, so both exist when they start.
            reader = api.create_once(reader_secret(cluster))
            api.create_once(token_secret(cluster, reader))
            return
        except (RefusedByApi, OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                raise
            _log.warning("trying again: %s", error)
            time.sleep(_PAUSE_S)


def main(arguments: list[str]) -> int:
    """Make the tokens of the cluster that the arguments name."""
    parser = argparse.ArgumentParser(description="Make the tokens of a cluster once.")
    parser.add_argument("cluster")
    parser.add_argument("--server", help="URL of the API server; by default that of this pod")
    parser.add_argument("--account", type=Path, default=_ACCOUNT)
    given = parser.parse_args(arguments)
    server = given.server or (
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    )
    logging.basicConfig(level=logging.INFO)
    make_tokens(SecretsApi(server, given.account), given.cluster)
    _log.info("the tokens of %s exist", given.cluster)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
