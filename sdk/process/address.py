"""Network addresses as settings hold them: `host:port`, IPv6 hosts in brackets."""

import ipaddress
import os
import re
from pathlib import Path

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})")


def split(address: str) -> tuple[str, int]:
    """Split `host:port` into host (without brackets) and port.

    Raises:
        ValueError: The text is not an address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"expected host:port such as '127.0.0.1:7070', got {address!r}")
    return match["host"].strip("[]"), int(match["port"])


def join(host: str, port: int) -> str:
    """Join host and port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(address: str) -> str:
    """Check an address to listen on; port 0 takes a free port."""
    split(address)
    return address


def reachable(address: str) -> str:
    """Check an address to connect to; port 0 is refused."""
    if split(address)[1] == 0:
        raise ValueError(f"expected the port that the other side listens on, got {address!r}")
    return address


def is_loopback(address: str) -> bool:
    """Say whether an address can be reached from this machine only."""
    host = split(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_everywhere(address: str) -> bool:
    """Say whether an address to listen on means all interfaces, and so nothing to others."""
    try:
        return ipaddress.ip_address(split(address)[0]).is_unspecified
    except ValueError:
        return False


def write_address(file: Path | None, address: str) -> None:
    """Tell others the bound address by a file that appears whole or not at all.

    Args:
        file: Where to write; None does nothing.
        address: The address with its real port.
    """
    if file is None:
        return
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(address + "\n", encoding="utf-8")
    draft.replace(file)
