"""Check the packages of the images for known vulnerabilities: `make audit`.

pip-audit asks a public service. Without a network, or for packages that the service does not know,
there is nothing to check against: that is said on standard error, and is no failure.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docker"
TIMEOUT_S = 60
_PIN = re.compile(r"^[A-Za-z0-9._-]+==\S+(?: \\\n    --hash=\S+)+$", re.MULTILINE)


class NotAudited(Exception):
    """Nothing could be checked; the message says why."""


def main() -> int:
    """Return 1 if a package has a known vulnerability."""
    pins = {pin for file in FOLDER.rglob("*.txt") for pin in _PIN.findall(file.read_text())}
    try:
        packages = ask("\n".join(sorted(pins)) + "\n")
    except NotAudited as error:
        return warn(f"NOTHING WAS AUDITED: {error}")
    for package in packages:
        for found in package.get("vulns", ()):
            name, version = package["name"], package["version"]
            fixed = ", ".join(found.get("fix_versions", ())) or "none yet"
            print(f"{name} {version}: {found['id']}; fixed in: {fixed}", file=sys.stderr)
    if not any("vulns" in package for package in packages):
        return warn("NOTHING WAS AUDITED: the service knows none of the packages")
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped:
        several = f"{len(skipped)} of {len(packages)} packages"
        warn(f"{several} WERE NOT AUDITED: the service does not know {', '.join(skipped)}")
    is_vulnerable = any(package.get("vulns") for package in packages)
    if not is_vulnerable:
        print(f"{len(packages) - len(skipped)} packages audited, no known vulnerabilities")
    return int(is_vulnerable)


def ask(requirements: str) -> list[Any]:
    """Return what the service knows about each package.

    Raises:
        NotAudited: It cannot be asked.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "requirements.txt")
        file.write_text(requirements)
        command = [
            *(sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"),
            *("--format", "json", "--progress-spinner", "off", "--timeout", "10", "-r", str(file)),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotAudited(f"no answer within {TIMEOUT_S} s") from None
    try:
        found: list[Any] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or ["pip-audit wrote nothing"]
        raise NotAudited(last[0]) from None
    return found


def warn(text: str) -> int:
    """Write a line that stands out; return 0."""
    print(f"=== make audit: {text} ===", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
