"""The table of errors in docs/errors.md, generated from the catalogue.

`python -m gradmesh.protos.reference docs/errors.md` updates it.
"""

import sys
from pathlib import Path

from gradmesh.protos.errors import CATALOGUE, MeshError

BEGIN = "<!-- errors: made by `python -m gradmesh.protos.reference docs/errors.md` -->"
END = "<!-- end of errors -->"


def errors_table() -> str:
    """Return the catalogue as a Markdown table, in its own order."""
    head = "| reason | class | also a | gRPC status | retry | meaning and remedy |\n"
    return head + "|---|---|---|---|---|---|\n" + "".join(map(_row, CATALOGUE.values()))


def renew(page: str) -> str:
    """Return the page with its table updated.

    Raises:
        ValueError: The page lacks the markers.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the markers {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{errors_table()}\n{END}{tail}"


def builtin_bases(cls: type[BaseException]) -> list[type[BaseException]]:
    """Return the builtin exceptions that a class is, without the bases of others among them."""
    builtins = [base for base in cls.__mro__ if base.__module__ == "builtins"]
    return [
        base
        for base in builtins
        if issubclass(base, BaseException)
        and not any(other is not base and issubclass(other, base) for other in builtins)
    ]


def _row(cls: type[MeshError]) -> str:
    also = ", ".join(f"`{base.__name__}`" for base in builtin_bases(cls))
    meaning = " ".join((cls.__doc__ or "").split())
    return (
        f"| `{cls.reason}` | `{cls.__name__}` | {also} | `{cls.code}` | {cls.retry.value} "
        f"| {meaning} |\n"
    )


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renew(file.read_text(encoding="utf-8")), encoding="utf-8")
