"""The final report: metrics as JSON, and an HTML page with curves."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradmesh.protos.printable import printable_lines
from gradmesh.protos.version import VERSION

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 240, 60, 30
_CURVES = (
    ("train", "loss", "training loss"),
    ("validation", "auc", "AUC on validation data"),
    ("validation", "log_loss", "log loss on validation data"),
    ("train", "samples_per_s", "samples/s"),
)


def write_report(
    folder: Path,
    settings: dict[str, Any],
    figures: dict[str, float],
    lines: Sequence[dict[str, Any]],
) -> None:
    """Write report.json and report.html into a folder.

    Args:
        folder: The job's output.
        settings: The job's settings, by section.
        figures: Metrics of the result.
        lines: Its metrics log.
    """
    report = {
        "gradmesh": VERSION,
        "figures": figures,
        "settings": settings,
        "validation": [line for line in lines if line["kind"] == "validation"],
    }
    _replace(folder / REPORT_FILE, json.dumps(report, indent=1) + "\n")
    _replace(folder / PAGE_FILE, page(settings, figures, lines))


def page(
    settings: dict[str, Any], figures: dict[str, float], lines: Sequence[dict[str, Any]]
) -> str:
    """Return the report as a page of HTML with curves as SVG."""
    rows = "".join(f"<tr><td>{_safe(n)}<td>{v:.6g}" for n, v in figures.items())
    curves = []
    for kind, name, title in _CURVES:
        points = [(line["step"], line[name]) for line in lines if line["kind"] == kind]
        if len(points) > 1:
            curves.append(f"<h2>{_safe(title)}</h2>{curve(points)}")
    wanted = _safe(json.dumps(settings, indent=1))
    return (
        "<!doctype html><meta charset=utf-8><title>gradmesh report</title>"
        # Whatever the settings contain, the page runs and loads nothing.
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\">"
        "<style>body{font:15px sans-serif;max-width:44em;margin:2em auto}"
        "td{padding:.1em 1.5em .1em 0}td+td{text-align:right}</style>"
        f"<h1>gradmesh report</h1><table>{rows}</table>{''.join(curves)}"
        f"<h2>Settings</h2><pre>{wanted}</pre>\n"
    )


def curve(points: Sequence[tuple[float, float]]) -> str:
    """Return a line through points as SVG, with the ranges of both axes."""
    steps, values = [p[0] for p in points], [p[1] for p in points]
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)

    def place(step: float, value: float) -> str:
        across = (step - first) / ((last - first) or 1)
        up = (value - low) / ((high - low) or 1)
        x = _LEFT + across * (_WIDTH - _LEFT - 10)
        y = (1 - up) * (_HEIGHT - _BOTTOM - 10) + 10
        return f"{x:.1f},{y:.1f}"

    line = " ".join(place(step, value) for step, value in points)
    ground = _HEIGHT - _BOTTOM
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" font-size="12">'
        f'<path d="M{_LEFT} 10V{ground}H{_WIDTH - 10}" fill="none" stroke="#999"/>'
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="1.5"/>'
        f'<text x="{_LEFT - 5}" y="16" text-anchor="end">{high:.4g}</text>'
        f'<text x="{_LEFT - 5}" y="{ground}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{first:g}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 10}" text-anchor="end">step {last:g}</text></svg>'
    )


def _safe(text: str) -> str:
    return html.escape(printable_lines(text))


def _replace(file: Path, text: str) -> None:
    """Write a file atomically."""
    draft = file.with_name(file.name + ".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
