"""Log lines of children, for people."""

import json

from gradmesh.sdk.process.log import pretty_line


def readable(line: str, *, colour: bool = False) -> str:
    """Render a JSON log line for people; any other line stays as it is."""
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except ValueError:
            return line
        if isinstance(fields, dict) and "message" in fields:
            # The effective configuration would fill the screen; it is in the log file.
            short = {key: value for key, value in fields.items() if not isinstance(value, dict)}
            return pretty_line(short, colour=colour, role=False)
    return line
