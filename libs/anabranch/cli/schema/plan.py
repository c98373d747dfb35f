"""The plan of a migration: made on a scratch server, and held against what waits in the real database."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch.cli.embedded import embedded_postgres
from anabranch.embedded import UNSYNCED
from anabranch.embedded.binaries import PostgresUnavailableError, find_binaries
from anabranch.store.ddl.difference import TableChange
from anabranch.store.log.version_log import version_log
from anabranch.store.plan.costs import Cost, CostKind, costs_of, warnings_of
from anabranch.store.plan.queued import QueuedTrouble, ReadBatches, queued_troubles
from anabranch.store.plan.scratch import copy_structure, planned, read_source, run_script, scratch_database
from anabranch.store.plan.script import Script, read_script
from anabranch.store.plan.structure import dump_structure
from anabranch.store.session.engine import Session, connect

HARD = frozenset({CostKind.PULL, CostKind.STOPS, CostKind.GONE})
"""Costs that a team wants to know of before."""


@dataclass(frozen=True, slots=True)
class MigratedTable:
    """A table that the migration changes, by its names in SQL before and after ("": it comes or goes). ``rows``: how
    many it has, None where that is not known."""

    before: str
    after: str
    rows: int | None
    costs: tuple[Cost, ...]
    texts: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """``version``: the database's schema version now. ``troubles``: those of batches that wait, of ``batches`` that
    were looked at, the last ones where ``unread`` more were left out; ``apps``: nodes by the earlier version that their
    app was built for, where these would need another one. ``left_out`` of the script, and ``missing`` from the copy, in
    words; ``writes``: statements that may write rows."""

    database: str
    version: int
    tables: tuple[MigratedTable, ...]
    batches: int
    unread: int
    troubles: tuple[QueuedTrouble, ...]
    apps: Mapping[int, int]
    left_out: tuple[str, ...]
    missing: tuple[str, ...]
    writes: int

    @property
    def is_hard(self) -> bool:
        """Whether a table is pulled, stops or goes, or batches that wait are refused."""
        kinds = {cost.kind for table in self.tables for cost in table.costs}
        return bool(kinds & HARD) or any(trouble.refused for trouble in self.troubles)


def make_plan(
    conn: Session, url: str, database: str, text: str, search_path: str | None, scratch_url: str | None
) -> MigrationPlan:
    """Plan the migration ``text`` for a database. ``conn``: a session with the real one at ``url``.

    Raises:
        ScriptError: the script can't be taken apart, or has what can't be run.
        MigrationPlanError: it can't be copied, or the migration fails.
        StructureError, PostgresUnavailableError: there is no way to copy it here.
        UnknownDatabaseError: there is no such database.
        psycopg.Error: Postgres refused something else.
    """
    script = read_script(text)
    source = read_source(conn, url, database)
    structure = dump_structure(_pg_dump(), url)
    batches = ReadBatches(conn, source.database.id)
    with _scratch(scratch_url) as copy:
        missing = copy_structure(copy, structure, source, roles=scratch_url is None)
        run_script(copy, script, source, search_path=search_path)
        changes = planned(copy, database)
        with connect(copy, application_name="anabranch-plan", autocommit=True) as asked:
            troubles = queued_troubles(asked, batches, changes)
    return MigrationPlan(
        database=database,
        version=source.database.ddl_version,
        tables=tuple(_table(change, source.rows) for change in changes),
        batches=batches.read,
        unread=batches.unread,
        troubles=tuple(troubles),
        apps=_apps(conn, database, changes),
        left_out=script.left_out,
        missing=tuple(missing),
        writes=_writes(script),
    )


def _table(change: TableChange, rows: Mapping[int, int | None]) -> MigratedTable:
    before, after = change.before, change.after
    many = None if before is None else rows.get(before.id)
    return MigratedTable(
        before="" if before is None else before.sql_name,
        after=after.sql_name if after is not None else "" if before is not None else change.markers[-1].sql_name,
        rows=many,
        costs=tuple(costs_of(change, many)),
        texts=change.texts,
        warnings=tuple(warnings_of(change, many)),
    )


def _apps(conn: Session, database: str, changes: list[TableChange]) -> Mapping[int, int]:
    """Nodes by the version that their app was built for, where the changes can't be told to such an app."""
    if not any(change.pulled or any(one.successor for one in change.dropped) for change in changes):
        return {}
    return {one.version: one.apps for one in version_log(conn, database).versions if one.apps}


def _writes(script: Script) -> int:
    return sum(statement.writes_rows for statement in script.statements)


@contextmanager
def _scratch(url: str | None) -> Iterator[str]:
    """The URL of an empty database for the block."""
    if url is not None:
        with scratch_database(url) as made:
            yield made
        return
    server = embedded_postgres("name another server by --scratch-url")
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-plan-") as folder,
        server(Path(folder) / "postgres", settings=UNSYNCED) as postgres,
    ):
        yield postgres.url


def _pg_dump() -> str:
    """The path of pg_dump: that of the embedded Postgres, which is new, else the machine's."""
    try:
        return find_binaries(for_root=False).program("pg_dump")
    except PostgresUnavailableError:
        found = shutil.which("pg_dump")
        if found is None:
            raise
        return found
