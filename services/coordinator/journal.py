"""The coordinator's durable state: members, ranks, shard map, tables, data positions, jobs done.

One SQLite file in write-ahead mode. A fact is in the file before it is sent to any process, so no
number is issued twice, even over a crash.
"""

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, final

from gradmesh.protos.coordinator.v1 import membership_pb2, table_pb2

_FILE = "coordinator.sqlite"
# Columns that files of earlier versions lack.
_ADDED = (
    "session BLOB DEFAULT x''",
    "gone_role INTEGER DEFAULT 0",
    "gone_session BLOB DEFAULT x''",
)


class Tombstone(NamedTuple):
    """The newest process of a name that ended.

    Args:
        incarnation: Its incarnation.
        role: Its role as a member; 0 where a former version stored none.
        session: Its session key; empty where it had none.
    """

    incarnation: int
    role: int = 0
    session: bytes = b""


class NameRecord(NamedTuple):
    """What is stored of one name.

    Args:
        member: The current member, if there is one.
        session: Its session key; empty where it has none.
        gone: The newest process that ended, if one did.
    """

    member: membership_pb2.Member | None
    session: bytes = b""
    gone: Tombstone | None = None


@final
class Journal:
    """The coordinator's file. It holds session keys, so only the owner may read it.

    Args:
        state_dir: Folder of the file; None keeps everything in memory.
    """

    def __init__(self, state_dir: Path | None) -> None:
        path = ":memory:"
        if state_dir is not None:
            path = str(_private_file(state_dir))
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
        held = {row[1] for row in self._db.execute("PRAGMA table_info(members)")}
        for column in _ADDED:
            if column.split()[0] not in held:
                self._db.execute(f"ALTER TABLE members ADD COLUMN {column}")

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

    def members(self) -> list[tuple[str, NameRecord]]:
        """Return what is stored of each name.

        Names whose members ended longest ago come first.
        """
        rows = self._db.execute(
            "SELECT name, member, session, gone, gone_role, gone_session FROM members "
            "ORDER BY rowid"
        ).fetchall()
        return [
            (
                name,
                NameRecord(
                    membership_pb2.Member.FromString(member) if member else None,
                    bytes(session),
                    Tombstone(int(gone), role, bytes(gone_session)) if int(gone) else None,
                ),
            )
            for name, member, session, gone, role, gone_session in rows
        ]

    def set_member(self, name: str, record: NameRecord) -> None:
        """Store the member of a name and its newest process that ended."""
        blob = b"" if record.member is None else record.member.SerializeToString()
        gone = record.gone or Tombstone(0)
        # Incarnations are unsigned 64-bit numbers; integers of SQLite are signed.
        self._db.execute(
            "REPLACE INTO members (name, member, session, gone, gone_role, gone_session) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (name, blob, record.session, str(gone.incarnation), gone.role, gone.session),
        )

    def remove_member(self, name: str) -> None:
        """Remove a name."""
        self._db.execute("DELETE FROM members WHERE name = ?", (name,))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._db.close()


def _private_file(folder: Path) -> Path:
    """Return the path of the file; only the owner may read the file and its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # A mounted volume may belong to another user; the file itself never does.
    with contextlib.suppress(PermissionError):
        folder.chmod(0o700)
    path = folder / _FILE
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    # SQLite gives the files beside it the same permissions.
    for file in (path, folder / f"{_FILE}-wal", folder / f"{_FILE}-shm"):
        with contextlib.suppress(FileNotFoundError):
            file.chmod(0o600)
    return path
