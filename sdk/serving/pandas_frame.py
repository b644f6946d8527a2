"""Rows as pandas gives ids; pandas is never imported here, whoever has a Series has done that."""

import sys
from typing import Any

from gradmesh.protos.frame import Array


def is_series(ids: Any) -> bool:
    """Tell whether ids are a pandas Series."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(ids, pandas.Series)


def is_frame(ids: Any) -> bool:
    """Tell whether ids are a pandas DataFrame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(ids, pandas.DataFrame)


def like_ids(rows: Array, ids: Any, table: str) -> Any:
    """Return rows as they are, or for a Series as a DataFrame with its index.

    Columns are named "<table>.0", "<table>.1" and so on.
    """
    if not is_series(ids):
        return rows
    columns = [f"{table}.{element}" for element in range(rows.shape[-1])]
    return sys.modules["pandas"].DataFrame(rows, index=ids.index, columns=columns)


def side_by_side(frames: list[Any]) -> Any:
    """Return DataFrames of one index as one."""
    return sys.modules["pandas"].concat(frames, axis=1)
