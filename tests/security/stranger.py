"""A process that floods a port of a process group: `HOST PORT KIND`, until its input ends.

It prints a line once the flood has begun.
"""

import contextlib
import secrets
import socket
import sys
import threading

HELD = 900


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, 5)


def hold(address: tuple[str, int]) -> None:
    """Open many connections that say nothing; open new ones for those that are closed."""
    held: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            held.append(connect(address))
        if len(held) == HELD:
            print("flooding", flush=True)
        if len(held) > HELD:
            held.pop(0).close()


def babble(address: tuple[str, int]) -> None:
    """Send bytes that are no greeting, on one connection after the other."""
    for number in range(1_000_000_000):
        with contextlib.suppress(OSError), connect(address) as sock:
            sock.sendall(secrets.token_bytes(1000))
        if number == 100:
            print("flooding", flush=True)


if __name__ == "__main__":
    host, port, kind = sys.argv[1:]
    flood = {"hold": hold, "babble": babble}[kind]
    threading.Thread(target=flood, args=((host, int(port)),), daemon=True).start()
    sys.stdin.read()
