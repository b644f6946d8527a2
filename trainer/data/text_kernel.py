"""Parse lines of numbers and tokens into arrays, in one pass over the bytes."""

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit

SKIP, LABEL, DENSE, HEXADECIMAL, TOKEN = 0, 1, 2, 3, 4
"""What a column holds; TOKEN is any text, known by its hash."""

FINE, FEW_COLUMNS, MANY_COLUMNS, NO_NUMBER, NO_LABEL, NO_HEXADECIMAL, EMPTY = 0, 1, 2, 3, 4, 5, 6

MISSING = -(2**63)
"""Marks a missing categorical value."""

_NEWLINE, _RETURN = 10, 13
# What float32 holds; beyond it a number would be infinite, and so would be the loss.
_LARGEST = float(np.finfo(np.float32).max)
_FNV_START, _FNV_FACTOR = 0xCBF29CE484222325, 0x100000001B3


@jit
def parse_lines(
    text: Any,
    separator: int,
    roles: Any,
    threshold: float,
    labels: Any,
    dense: Any,
    tokens: Any,
    starts: Any,
    problems: Any,
) -> int:
    """Parse whole lines; return how many there were.

    Args:
        text: uint8 [n].
        separator: The byte between columns.
        roles: int8 [columns], what each column holds.
        threshold: From which label on a sample counts as a click; NaN takes 0 and 1 only.
        labels: Takes float32 [lines].
        dense: Takes float32 [lines, dense features], NaN where nothing was given.
        tokens: Takes int64 [lines, categorical features], MISSING where nothing was given.
        starts: Takes int64 [lines], where each line begins.
        problems: Takes int64 [lines]: 0, or what is wrong + 16 * the column, from 1.
    """
    line, place, size = 0, 0, text.size
    while place < size:
        begin = place
        while place < size and text[place] != _NEWLINE:
            place += 1
        end = place
        place += 1
        if end > begin and text[end - 1] == _RETURN:
            end -= 1
        starts[line] = begin
        # A lone column may be missing.
        if end == begin and roles.size > 1:
            problems[line] = EMPTY
            line += 1
            continue
        problems[line] = _parse_line(
            text[begin:end],
            separator,
            roles,
            threshold,
            labels[line : line + 1],
            dense[line],
            tokens[line],
        )
        line += 1
    return line


@jit
def _parse_line(
    text: Any, separator: int, roles: Any, threshold: float, label: Any, dense: Any, tokens: Any
) -> int:
    column, numbers, names, begin = 0, 0, 0, 0
    for place in range(text.size + 1):
        if place < text.size and text[place] != separator:
            continue
        if column >= roles.size:
            return MANY_COLUMNS + 16 * (column + 1)
        role = roles[column]
        field = text[begin:place]
        column += 1
        begin = place + 1
        if role == LABEL:
            value = _number(field)
            if np.isnan(value) or (np.isnan(threshold) and value != 0.0 and value != 1.0):
                return NO_LABEL + 16 * column
            if np.isnan(threshold):
                label[0] = value
            else:
                label[0] = 1.0 if value >= threshold else 0.0
        elif role == DENSE:
            value = _number(field)
            if field.size and not abs(value) <= _LARGEST:
                return NO_NUMBER + 16 * column
            dense[numbers] = value
            numbers += 1
        elif role == HEXADECIMAL:
            token = _hexadecimal(field)
            if token < 0 and field.size:
                return NO_HEXADECIMAL + 16 * column
            tokens[names] = token
            names += 1
        elif role == TOKEN:
            tokens[names] = _hash(field)
            names += 1
    return FEW_COLUMNS + 16 * column if column < roles.size else FINE


@jit
def _number(field: Any) -> float:
    """Return a decimal number, NaN if it is malformed."""
    place, sign = 0, 1.0
    if field.size and (field[0] == 45 or field[0] == 43):
        sign = -1.0 if field[0] == 45 else 1.0
        place = 1
    value, scale, digits, after = 0.0, 1.0, 0, False
    while place < field.size:
        byte = field[place]
        if 48 <= byte <= 57:
            value = value * 10.0 + (byte - 48)
            scale = scale * 10.0 if after else scale
            digits += 1
        elif byte == 46 and not after:
            after = True
        else:
            break
        place += 1
    if not digits:
        return np.nan
    if place < field.size:
        exponent = _exponent(field[place:])
        if exponent == 9999:
            return np.nan
        return sign * value / scale * 10.0**exponent
    return sign * value / scale


@jit
def _exponent(field: Any) -> int:
    """Return the number in text such as e-05; 9999 if there is none."""
    if field.size < 2 or (field[0] != 101 and field[0] != 69):
        return 9999
    place, sign = 1, 1
    if field[1] == 45 or field[1] == 43:
        sign = -1 if field[1] == 45 else 1
        place = 2
    if place == field.size or field.size - place > 3:
        return 9999
    value = 0
    while place < field.size:
        if field[place] < 48 or field[place] > 57:
            return 9999
        value = value * 10 + (field[place] - 48)
        place += 1
    return sign * value


@jit
def _hexadecimal(field: Any) -> int:
    """Return a hexadecimal number of up to 15 digits, MISSING if it is malformed."""
    if not field.size or field.size > 15:
        return MISSING
    value = 0
    for byte in field:
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        else:
            return MISSING
        value = value * 16 + digit
    return value


@jit
def _hash(field: Any) -> int:
    """Return FNV-1a of the bytes without the sign bit; a decimal number is its own hash."""
    if not field.size:
        return MISSING
    value, plain = np.uint64(_FNV_START), field.size <= 18
    number = 0
    for byte in field:
        value = (value ^ np.uint64(byte)) * np.uint64(_FNV_FACTOR)
        if byte < 48 or byte > 57:
            plain = False
        else:
            number = number * 10 + (byte - 48)
    if plain:
        return number
    return np.int64(value & np.uint64(0x7FFFFFFFFFFFFFFF))  # type: ignore[return-value]


@jit
def hash_fields(text: Any, ends: Any, out: Any) -> None:
    """Write the tokens of adjacent fields that end at `ends`."""
    begin = 0
    for place in range(ends.size):
        out[place] = _hash(text[begin : ends[place]])
        begin = ends[place]
