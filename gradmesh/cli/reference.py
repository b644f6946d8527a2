"""Generate the tables of settings in docs/operations.md from the sections.

Run `python -m gradmesh.cli.reference docs/operations.md`.
"""

import sys
from pathlib import Path

from gradmesh.cli.options import shown
from gradmesh.launch.sections import cluster_sections
from gradmesh.sdk.process.setting import Section, Setting, settings

BEGIN = "<!-- settings: made by `python -m gradmesh.cli.reference docs/operations.md` -->"
END = "<!-- end of settings -->"


def settings_tables() -> str:
    """Return a Markdown table per section."""
    return "\n".join(_table(section) for section in cluster_sections())


def renew(page: str) -> str:
    """Return the page with its tables of settings regenerated.

    Raises:
        ValueError: The page lacks the markers.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the markers {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{settings_tables()}\n{END}{tail}"


def _table(section: type[Section]) -> str:
    head = f"### [{section.section}]\n\n| key | flag | variable | default | meaning |\n"
    rows = "".join(_row(s) for s in settings(section))
    return f"{head}|---|---|---|---|---|\n{rows}"


def _row(setting: Setting) -> str:
    default = shown(setting.default).replace("|", "\\|")
    meaning = (setting.rule.help + _range(setting)).replace("|", "\\|")
    return (
        f"| `{setting.name}` | `{setting.flag}` | `{setting.variable}` | `{default}` "
        f"| {meaning} |\n"
    )


def _range(setting: Setting) -> str:
    low, high = setting.rule.minimum, setting.rule.maximum
    if low is not None and high is not None:
        return f" From {low:,.10g} to {high:,.10g}."
    if low is not None:
        return f" At least {low:,.10g}."
    return "" if high is None else f" At most {high:,.10g}."


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renew(file.read_text(encoding="utf-8")), encoding="utf-8")
