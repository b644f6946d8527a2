"""The coordinator's durable state: members, ranks, shard map, tables, data positions, jobs done.

One SQLite file in write-ahead mode. A fact is in the file before it is sent to any process, so no
number is issued twice, even over a crash.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import final

from gradmesh.protos.coordinator.v1 import membership_pb2, table_pb2


@final
class Journal:
    """The coordinator's file.

    Args:
        state_dir: Folder of the file; None keeps everything in memory.
    """

    def __init__(self, state_dir: Path | None) -> None:
        path = ":memory:"
        if state_dir is not None:
            state_dir.mkdir(parents=True, exist_ok=True)
            path = str(state_dir / "coordinator.sqlite")
        # Used only under the servicer's lock, by one thread at a time.
        self._db = sqlite3.connect(path, timeout=5.0, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB)")
        self._db.execute("CREATE TABLE IF NOT EXISTS tables (name TEXT PRIMARY KEY, spec BLOB)")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS data_sets (name TEXT PRIMARY KEY, position BLOB)"
        )
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS members (name TEXT PRIMARY KEY, member BLOB, gone TEXT)"
        )

    def fact(self, name: str) -> bytes:
        """Return a stored fact, empty at first."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else b""

    def set_fact(self, name: str, value: bytes) -> None:
        """Store a fact."""
        self._db.execute("REPLACE INTO facts VALUES (?, ?)", (name, value))

    def set_facts(self, facts: Mapping[str, bytes]) -> None:
        """Store several facts atomically."""
        self._db.execute("BEGIN")
        try:
            self._db.executemany("REPLACE INTO facts VALUES (?, ?)", facts.items())
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def tables(self) -> list[table_pb2.TableSpec]:
        """Return the stored tables."""
        rows = self._db.execute("SELECT spec FROM tables ORDER BY name").fetchall()
        return [table_pb2.TableSpec.FromString(row[0]) for row in rows]

    def add_table(self, spec: table_pb2.TableSpec) -> None:
        """Store a table."""
        blob = spec.SerializeToString(deterministic=True)
        self._db.execute("REPLACE INTO tables VALUES (?, ?)", (spec.name, blob))

    def data_sets(self) -> list[tuple[str, bytes]]:
        """Return the data sets with their positions."""
        rows = self._db.execute("SELECT name, position FROM data_sets ORDER BY name").fetchall()
        return [(name, bytes(position)) for name, position in rows]

    def set_data_set(self, name: str, position: bytes) -> None:
        """Store the position of a data set."""
        self._db.execute("REPLACE INTO data_sets VALUES (?, ?)", (name, position))

    def members(self) -> list[tuple[str, membership_pb2.Member | None, int]]:
        """Return each name with its current member, if any, and the newest incarnation that ended.

        Names whose members ended longest ago come first.
        """
        rows = self._db.execute("SELECT name, member, gone FROM members ORDER BY rowid").fetchall()
        return [
            (name, membership_pb2.Member.FromString(member) if member else None, int(gone))
            for name, member, gone in rows
        ]

    def set_member(self, name: str, member: membership_pb2.Member | None, gone: int) -> None:
        """Store the member of a name and its newest incarnation that ended; 0 for none."""
        blob = b"" if member is None else member.SerializeToString()
        # Incarnations are unsigned 64-bit numbers; integers of SQLite are signed.
        self._db.execute("REPLACE INTO members VALUES (?, ?, ?)", (name, blob, str(gone)))

    def remove_member(self, name: str) -> None:
        """Remove a name."""
        self._db.execute("DELETE FROM members WHERE name = ?", (name,))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._db.close()
