"""The secrets that open connections: each once, for a few seconds, a bounded number of them."""

import hmac
import secrets
import threading
import time
from typing import final

from gradmesh.sdk.transport.lane.handshake import SECRET_BYTES

_TTL_S = 10.0
_MAX = 256


@final
class Offers:
    """Secrets given out and not yet used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _open
        self._open: list[tuple[float, bytes]] = []

    def make(self) -> bytes | None:
        """Return a new secret; None when too many are waiting."""
        now = time.monotonic()
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._open = [offer for offer in self._open if offer[0] > now]
            if len(self._open) >= _MAX:
                return None
            self._open.append((now + _TTL_S, secret))
        return secret

    def take(self, shown: bytes) -> bool:
        """Tell whether a secret is good, and use it up."""
        now = time.monotonic()
        with self._lock:
            for place, (until, secret) in enumerate(self._open):
                if hmac.compare_digest(secret, shown):
                    del self._open[place]
                    return until > now
        return False
