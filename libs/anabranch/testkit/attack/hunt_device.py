"""A device in a leak hunt: it syncs, writes what it may and what it may not, and its claims change all the time."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anabranch.client import CallFailed, SyncedDb
from anabranch.client.errors import ClientError
from anabranch.testkit.attack.hunted import DATABASE, TEAMS, Known, teams
from anabranch.testkit.attack.wiretap import TappedRemote, Wiretap

PAUSE_S = 0.02
SYNC_S = 5.0


class HuntDevice:
    """A device of ``principal``. ``sign`` makes a token of a principal and claims."""

    def __init__(
        self,
        file: Path,
        principal: str,
        addresses: Mapping[str, str],
        tap: Wiretap,
        sign: Callable[[str, Mapping[str, Any]], str],
        known: Known,
        chance: random.Random,
    ) -> None:
        self.principal = principal
        self.nodes: set[str] = set()
        self.failures: dict[str, str] = {}
        self._sign = sign
        self._known = known
        self._chance = chance
        self._token = sign(principal, {"teams": [chance.choice(TEAMS)]})
        self.remote = TappedRemote(
            tap,
            ingest=addresses["ingest"],
            snapshot=addresses["snapshot"],
            resolver=addresses["conflict-resolver"],
            token=lambda: self._token,
        )
        self._db = SyncedDb(str(file), self.remote, DATABASE, node_name=principal)

    def begin(self) -> None:
        """Take the first pull, by which the server comes to know the principal. Raises CallFailed."""
        self._db.start(background=False)

    def run(self, stop: threading.Event) -> None:
        """Sync and write until ``stop``, and then sync once more."""
        while not stop.wait(PAUSE_S):
            for _ in range(self._chance.randrange(4)):
                self._write()
            if self._chance.random() < 0.15:
                chosen = self._chance.sample(TEAMS, self._chance.randrange(3))
                self._token = self._sign(self.principal, {"teams": chosen})
            self._attempt(self._db.flush, SYNC_S)
            self._attempt(self._db.read)
            if self._chance.random() < 0.1:
                self._attempt(lambda: list(self._db.conflicts()))
                self._attempt(self._db.verify)
            self.nodes.add(self._db.status().node_id)

    def close(self) -> None:
        """Close its file and its connections."""
        self._db.close()
        self.remote.close()

    def _attempt(self, do: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Call; failures that a device may have are kept, by their code."""
        try:
            do(*args, **options)
        except CallFailed as error:
            self.failures[f"{error.code} {error.reason}"] = str(error)
        except ClientError as error:
            self.failures[type(error).__name__] = str(error)

    def _write(self) -> None:
        write = self._chance.choice([self._insert, self._insert_over, self._edit, self._edit, self._move, self._delete])
        with contextlib.suppress(ClientError):
            self._known.note(self._known.batches, write())

    def _sends(self, *marks: str | None) -> None:
        for mark in marks:
            if mark:
                self._known.note(self._known.sent, (self.principal, mark))

    def _insert(self) -> str:
        row = self._known.job(self._chance, *teams(self._chance))
        if self._chance.random() < 0.2:
            # A code that another row has, perhaps one that is not seen.
            row["code"] = self._known.any(self._known.codes, self._chance, row["code"])
        self._sends(row["id"], row["title"], row["note"], row["code"])
        return self._db.table("job").insert([row])

    def _insert_over(self) -> str:
        row = {**self._known.job(self._chance, *teams(self._chance))}
        row["id"] = self._known.any(self._known.jobs, self._chance, row["id"])
        self._sends(row["id"], row["title"], row["note"], row["code"])
        return self._db.table("job").insert([row])

    def _seen(self) -> str:
        rows = self._db.execute("SELECT id FROM job").fetchall()
        return str(self._chance.choice(rows)[0]) if rows else ""

    def _edit(self) -> str:
        mark = self._known.marks.new(["by.device"])
        self._sends(mark)
        return self._db.table("job").update([{"id": self._seen(), self._chance.choice(["title", "note"]): mark}])

    def _move(self) -> str:
        team, other = teams(self._chance)
        return self._db.table("job").update([{"id": self._seen(), "team": team, "other": other}])

    def _delete(self) -> str:
        return self._db.table("job").delete([self._seen()])
