"""From the text of a flag or variable, or a TOML value, to the type that a setting declares."""

import difflib
import math
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from gradmesh.sdk.process.setting import Rule

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def convert(annotation: Any, raw: object, rule: Rule) -> Any:
    """Convert one value and check it against its rule.

    Args:
        annotation: The declared type: bool, int, float, str, Path, Literal, `tuple[T, ...]` or
            one of these with `| None`.
        raw: Text from a flag or variable (any type is read from text), or a TOML value.
        rule: Range and check of the setting.

    Returns:
        The value to keep.

    Raises:
        ValueError: With what was expected and what came.
    """
    inner, optional = _without_none(annotation)
    if optional and (raw is None or raw == "" or raw == "none"):
        return None
    value = _typed(inner, raw)
    for item in value if isinstance(value, tuple) else (value,):
        _in_range(item, rule)
    return value if rule.check is None else rule.check(value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` when a known name is near, else an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = [arg for arg in get_args(annotation) if arg is not types.NoneType]
        return inner, True
    return annotation, False


def _typed(annotation: Any, raw: object) -> Any:
    origin = get_origin(annotation)
    if origin is Literal:
        return _choice(get_args(annotation), raw)
    if origin is tuple:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list):
            raise ValueError(f"expected a list, got {raw!r}")
        return tuple(_typed(get_args(annotation)[0], part) for part in parts if part != "")
    return _SCALARS[annotation](raw)


def _choice(choices: tuple[str, ...], raw: object) -> str:
    if raw in choices:
        return str(raw)
    hint = did_you_mean(str(raw), choices)
    raise ValueError(f"expected one of {', '.join(choices)}, got {raw!r}{hint}")


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = raw.strip().lower() if isinstance(raw, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(f"expected true or false, got {raw!r}")


def _integer(raw: object) -> int:
    if isinstance(raw, str):
        try:
            return int(raw)
        except ValueError:
            pass
    elif isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    raise ValueError(f"expected a whole number, got {raw!r}")


def _number(raw: object) -> float:
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        try:
            value = float(raw)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
    raise ValueError(f"expected a number, got {raw!r}")


def _text(raw: object) -> str:
    if isinstance(raw, str):
        return raw
    raise ValueError(f"expected text, got {raw!r}")


def _path(raw: object) -> Path:
    if isinstance(raw, Path):
        return raw
    text = _text(raw)
    if not text:
        raise ValueError("expected a path, got an empty text")
    return Path(text).expanduser()


_SCALARS: dict[Any, Any] = {
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
    Path: _path,
}


def _in_range(value: object, rule: Rule) -> None:
    if not isinstance(value, int | float):
        return
    if rule.minimum is not None and value < rule.minimum:
        raise ValueError(f"expected at least {rule.minimum:g}, got {value:g}")
    if rule.maximum is not None and value > rule.maximum:
        raise ValueError(f"expected at most {rule.maximum:g}, got {value:g}")
