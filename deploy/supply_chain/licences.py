"""Generate docs/licences.md: the licences of the packages that gradmesh needs at run time.

`make licences` writes it. `make check` fails if it is not current, or names a licence that is not
among the allowed ones. Licences are read from the installed packages.
"""

import re
import sys
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "licences.md"
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "MIT",
        "PSF-2.0",
        "Zlib",
    }
)
"""Licences that allow use in a product of any licence, on the condition of attribution at most."""

# Of packages that name their licence in their own words.
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD": "BSD-2-Clause",  # numba's LICENSE file
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
}
_HEAD = """# Licences

The packages that gradmesh needs at run time, theirs included, and the licences that they declare.
Made by `make licences` from the installed packages; `make check` fails if it is not current, or if
a licence is not among those allowed in `deploy/supply_chain/licences.py`. Extras bring packages of
their own.

| package | licence |
|---|---|
"""


def packages() -> list[str]:
    """Return the names of the packages, as the images pin them."""
    text = (ROOT / "deploy/docker/requirements.txt").read_text(encoding="utf-8")
    return re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)


def licence_of(package: str) -> str:
    """Return the licence of an installed package as an SPDX expression, or in its own words."""
    found, fields = metadata(package), ("License-Expression", "License", "Classifier")
    declared = [text for field in fields for text in found.get_all(field) or []]
    named = [str(text) for text in declared if "\n" not in text]
    spdx = [text for text in named if not licences_refused(text)]
    known = [_SPDX[text] for text in named if text in _SPDX]
    return next(iter([*spdx, *known, *named]), "none is declared")


def licences_refused(expression: str) -> list[str]:
    """Return the licences of an SPDX expression that are not allowed."""
    return [one for one in re.split(r" AND | OR ", expression) if one.strip("()") not in ALLOWED]


def page() -> str:
    """Return the page."""
    rows = (f"| {package} | {licence_of(package)} |\n" for package in packages())
    return _HEAD + "".join(rows)


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return 1 if it is not current or a licence is not allowed."""
    refused = {name: licences_refused(licence_of(name)) for name in packages()}
    for name, licences in refused.items():
        for licence in licences:
            print(f"{name}: the licence {licence!r} is not allowed", file=sys.stderr)
    current = page()
    if "--check" in arguments:
        is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == current
        if not is_current:
            print(f"{PAGE.relative_to(ROOT)} is not current: run `make licences`", file=sys.stderr)
        return int(not is_current or any(refused.values()))
    PAGE.write_text(current, encoding="utf-8")
    return int(any(refused.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
