"""The secrets that open connections: each once, for a few seconds, a bounded number of them."""

import hmac
import secrets
import threading
import time
from typing import final

from gradmesh.sdk.transport.caller import Caller
from gradmesh.sdk.transport.lane.handshake import SECRET_BYTES

_TTL_S = 10.0
_MAX = 256


@final
class Offers:
    """Secrets given out and not yet used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _open
        self._open: list[tuple[float, bytes, Caller]] = []

    def make(self, caller: Caller) -> bytes | None:
        """Return a new secret for a caller; None when too many are waiting."""
        now = time.monotonic()
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._open = [offer for offer in self._open if offer[0] > now]
            if len(self._open) >= _MAX:
                return None
            self._open.append((now + _TTL_S, secret, caller))
        return secret

    def take(self, shown: bytes) -> Caller | None:
        """Return whom a secret was made for, and use it up; None if it is not good."""
        now = time.monotonic()
        with self._lock:
            for place, (until, secret, caller) in enumerate(self._open):
                if hmac.compare_digest(secret, shown):
                    del self._open[place]
                    return caller if until > now else None
        return None
