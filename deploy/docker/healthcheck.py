"""Check whether the process of this container is ready: exit code 0, or 1 with the reason.

It requests the endpoint of GRADMESH_METRICS_LISTEN over a plain socket: this runs every few
seconds in every container, and must be cheap.
"""

import os
import socket
import sys

PATH = "/readyz"
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}


def main() -> int:
    """Check once."""
    listen = os.environ.get("GRADMESH_METRICS_LISTEN", "off")
    if listen == "off":
        print("GRADMESH_METRICS_LISTEN is off: it runs, and more is not known")
        return 0
    host, _, port = listen.rpartition(":")
    try:
        with socket.create_connection((_ANY_HOST.get(host, host), int(port)), 2) as peer:
            peer.sendall(f"GET {PATH} HTTP/1.0\r\n\r\n".encode())
            answer = peer.makefile("rb").read(4096).decode(errors="replace")
    except OSError as error:
        print(f"{listen}: {error}")
        return 1
    status, _, body = answer.partition("\r\n")
    print(body.rpartition("\r\n")[2].strip() or status)
    return 0 if " 200 " in status else 1


if __name__ == "__main__":
    sys.exit(main())
