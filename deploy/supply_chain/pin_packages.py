"""Write the hashes of the packages that images install: `make requirements`.

A file of requirements has a line name==version for each package. This reads these lines, asks pip's
package index for the files of each version, and writes the SHA-256 of all that an image may take:
wheels for Linux on x86-64 and ARM. pip then refuses every other file. To change a version, edit its
line and run this.
"""

import os
import re
import ssl
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

FOLDER = Path(__file__).resolve().parents[1] / "docker"
FILES = [*sorted(FOLDER.glob("*requirements.txt")), *sorted(FOLDER.glob("extras/*.txt"))]
PYTHONS = ("cp311", "cp312", "cp313")
TIMEOUT_S = 60.0
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


class _Links(HTMLParser):
    """Collects the links of an index page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def index_address() -> str:
    """Return the address of the index that pip uses."""
    if address := os.environ.get("PIP_INDEX_URL"):
        return address.rstrip("/")
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode == 0:
        return done.stdout.strip().rstrip("/")
    from pip._internal.models.index import PyPI  # what pip falls back to

    return str(PyPI.simple_url).rstrip("/")


def is_for_images(file: str, version: str) -> bool:
    """Return whether a file is a wheel of a version that an image can install."""
    try:
        _, found, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    return str(found) == version and any(
        (tag.interpreter in PYTHONS or tag.interpreter.startswith("py3") or tag.abi == "abi3")
        and tag.abi.removesuffix("t") == tag.abi
        and ("manylinux" in tag.platform or tag.platform == "any")
        and (tag.platform == "any" or tag.platform.endswith(("x86_64", "aarch64")))
        for tag in tags
    )


def hashes_of(page: str, version: str) -> list[str]:
    """Return the hashes of a version's files on an index page.

    Raises:
        LookupError: There is no such file, or one without a SHA-256.
    """
    parser = _Links()
    parser.feed(page)
    found = set()
    for link in parser.links:
        address, fragment = urldefrag(link)
        if is_for_images(unquote(address.rpartition("/")[2]), version):
            algorithm, _, value = fragment.partition("=")
            if algorithm != "sha256":
                raise LookupError(f"{address} has no sha256 in the index")
            found.add(value)
    if not found:
        raise LookupError(f"the index has no wheel of version {version} for images")
    return sorted(found)


def pinned(text: str, index: str) -> str:
    """Return a file of requirements with the hashes of its packages."""
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    trust = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    lines = []
    for name, version in _PIN.findall(text):
        address = f"{index}/{canonicalize_name(name)}/"
        request = urllib.request.Request(address, headers={"Accept": "text/html"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trust) as answer:
            found = hashes_of(answer.read().decode(), version)
        hashes = [f"    --hash=sha256:{value}" for value in found]
        lines.append(" \\\n".join([f"{name}=={version}", *hashes]))
    return head + "\n".join(lines) + "\n"


def main() -> None:
    """Renew all files."""
    index = index_address()
    for file in FILES:
        file.write_text(pinned(file.read_text(encoding="utf-8"), index), encoding="utf-8")
        print(f"renewed {file.name}")


if __name__ == "__main__":
    main()
