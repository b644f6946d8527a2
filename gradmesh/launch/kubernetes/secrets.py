"""The tokens of a cluster on Kubernetes, as two Secrets.

NAME-token is for the pods and for users who may change the cluster; NAME-reader-token is for users
who may only look. The right to forward ports includes neither, so it is not enough to call rpcs.
"""

import base64
import hashlib
from typing import Any

from gradmesh.protos.rpcs import ADMIN, READER
from gradmesh.sdk.process.private import new_token

TOKEN = "token"
_ACCEPTED = "tokens"
_COMPONENT = "token"


def token_name(cluster: str) -> str:
    """Return the name of the Secret with the token of the pods."""
    return f"{cluster}-token"


def reader_token_name(cluster: str) -> str:
    """Return the name of the Secret with the token that only reads."""
    return f"{cluster}-reader-token"


def reader_secret(cluster: str) -> dict[str, Any]:
    """Return a new Secret with a token that only reads."""
    return _secret(cluster, reader_token_name(cluster), {TOKEN: new_token()})


def token_secret(cluster: str, reader: dict[str, Any]) -> dict[str, Any]:
    """Return a new Secret with the token of the pods, and the tokens that they accept.

    Args:
        cluster: Name of the cluster.
        reader: The Secret with the token that only reads.
    """
    token = new_token()
    # The pods accept the other token by its sum.
    other = hashlib.sha256(token_in(reader).encode()).hexdigest()
    accepted = f"{ADMIN}:{token}\n{READER}:sha256:{other}\n"
    return _secret(cluster, token_name(cluster), {TOKEN: token, _ACCEPTED: accepted})


def token_in(secret: dict[str, Any]) -> str:
    """Return the token of a Secret."""
    return base64.b64decode(secret["data"][TOKEN]).decode("ascii").strip()


def _secret(cluster: str, name: str, values: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "gradmesh",
                "app.kubernetes.io/instance": cluster,
                "app.kubernetes.io/component": _COMPONENT,
            },
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in values.items()},
    }
