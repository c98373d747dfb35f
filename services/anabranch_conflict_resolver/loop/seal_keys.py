"""The keys of databases' seals, read in sessions in which no code of the application's owners runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

from anabranch.store.catalog.databases import read_seal_key
from anabranch.store.session.engine import connect


@dataclass(slots=True)
class SealKeys:
    """Shared by all threads. A database's key never changes: each is read once."""

    url: str
    _lock: Lock = field(default_factory=Lock)
    _keys: dict[int, bytes] = field(default_factory=dict)

    def __call__(self, database_id: int) -> bytes:
        """The key of a database.

        Raises:
            psycopg.Error: it can't be read.
            UnknownDatabaseError: there is no such database.
        """
        with self._lock:
            if database_id not in self._keys:
                name = "anabranch-conflict-resolver-keys"
                with connect(self.url, application_name=name, autocommit=True) as conn:
                    self._keys[database_id] = read_seal_key(conn, database_id)
            return self._keys[database_id]
