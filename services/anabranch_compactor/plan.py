"""Plans the work of a run, as of one moment.

The session that takes the moment stays open while a table's first base is pulled, since executors join its snapshot;
else it is closed at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from anabranch.columnar.file_columns import file_table
from anabranch.columnar.manifest import Base, EndedRegistration, Manifest, TableFiles, from_json
from anabranch.columnar.proof import Sum
from anabranch.errors import ServerError
from anabranch.runtime.telemetry import span
from anabranch.store.capture.rows import UndecodableError
from anabranch.store.capture.undrained import UndrainedError, rows_before
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.drift import drift, stopped_tables
from anabranch.store.catalog.ended_registrations import ended_registrations
from anabranch.store.catalog.former_tables import Former, read_former
from anabranch.store.cells.binary_cells import Row
from anabranch.store.ddl.markers import waiting
from anabranch.store.lake import compactions as store
from anabranch.store.session.engine import Session, SessionOptions, connect
from anabranch.values import Table
from anabranch_compactor.shape import Shape

CHANGES_PER_READ = 250_000
"""Changes that one task reads."""
_HOUR_MS = 3_600_000
_OPTIONS = SessionOptions(statement_timeout_ms=_HOUR_MS, idle_in_transaction_session_timeout_ms=6 * _HOUR_MS)


class PlanError(ServerError):
    """The log can't be compacted as it is; the message says why."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """``log``: the sum of the table's effects in the run's stretch, None where there are none. ``conflicts``: that of
    its conflicts. ``table_sum``: its rows at the moment. ``extent``: its size, where its first base is to be pulled;
    ``taken_back``: of the rows that it has then those that changes past the services have touched which are in no group
    yet, by key text, as they were before (None: not there). ``resummed``: whether a column was dropped in the stretch,
    so that the hash of every row of the base is another one by now."""

    shape: Shape
    log: store.LogSum | None
    conflicts: store.LogSum | None
    table_sum: Sum
    extent: store.Extent | None
    taken_back: Mapping[str, Row | None]
    resummed: bool = False


@dataclass(frozen=True, slots=True)
class FormerPlan:
    """The stretch's part of a registration that has ended; ``last_position``: the head when it ended."""

    shape: Shape
    log: store.LogSum | None
    conflicts: store.LogSum | None
    last_position: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The stretch (``after``, ``upto``], cut at ``cuts``. ``last``: the manifest before, None for the first run;
    ``last_root``: the root of its files. ``former``: in the order of their registrations. ``earlier``: by table, the
    registrations that had ended before."""

    database: Database
    after: int
    upto: int
    cuts: tuple[int, ...]
    last: Manifest | None
    tables: Mapping[str, TablePlan]
    snapshot: str
    former: tuple[FormerPlan, ...] = ()
    earlier: Mapping[str, Sequence[EndedRegistration]] = field(default_factory=dict)
    last_root: str = ""

    @property
    def changes(self) -> int:
        """Number of changes in the stretch."""
        logs = [*(t.log for t in self.tables.values()), *(t.log for t in self.former)]
        return sum(log.effects.count for log in logs if log is not None)

    def base_of(self, former: FormerPlan) -> Base | None:
        """The base that was published of a registration that has ended since."""
        table = former.shape.table
        known = None if self.last is None else self.last.tables.get(table.name)
        return known.base if known is not None and known.table_id == table.id else None

    def files_before(self, former: FormerPlan) -> TableFiles:
        """The published files of the table that a registration was of, without a base: nothing is known of its rows by
        now."""
        table = former.shape.table
        known = None if self.last is None else self.last.tables.get(table.name)
        ended = self._ended(table.name, 0)
        if known is None:
            return TableFiles(table.id, former.shape.file_table, ended=ended)
        return replace(known, table_id=table.id, columns=former.shape.file_table, base=None, ended=ended, earlier=())

    def files_of(self, name: str) -> TableFiles:
        """The published files of a table, to which the run adds its own."""
        shape = self.tables[name].shape
        known = None if self.last is None else self.last.tables.get(name)
        ended = self._ended(name, shape.table.id)
        if known is None:
            return TableFiles(shape.table.id, shape.file_table, ended=ended)
        # Dropped and made anew: its history goes on, its rows begin anew.
        base, earlier = (known.base, known.earlier) if known.table_id == shape.table.id else (None, ())
        number, columns = shape.table.id, shape.file_table
        return replace(known, table_id=number, columns=columns, base=base, ended=ended, earlier=earlier)

    def _ended(self, name: str, current: int) -> tuple[EndedRegistration, ...]:
        """The registrations of a table that have ended, those that no manifest has as such among them."""
        known = None if self.last is None else self.last.tables.get(name)
        done = list(self.earlier.get(name, ()))
        found = {one.shape.table.id: one for one in self.former if one.shape.table.name == name}
        published = set() if known is None else {known.table_id}
        for number in sorted((found.keys() | published) - {current, *(one.table_id for one in done)}):
            former = found.get(number)
            # Where the stretch has nothing of it, all its changes are published.
            last_position = self.after if former is None else former.last_position
            if known is not None and number == known.table_id:
                columns = known.columns if former is None else former.shape.file_table
                kept = known.base, self.after, known.earlier
                done.append(EndedRegistration(number, last_position, columns, *kept))
            elif former is not None:
                done.append(EndedRegistration(number, last_position, former.shape.file_table))
        return tuple(done)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.upto <= self.after


@contextmanager
def planned(url: str, db_name: str) -> Iterator[Plan]:
    """The plan of a run; its moment can be joined while the block lasts.

    Raises:
        UnknownDatabaseError: there is no such database.
        PlanError: the log was cut above the published position.
    """
    with connect(url, application_name="anabranch-compactor", autocommit=True, options=_OPTIONS) as conn:
        # Which tables get their first base is looked at beforehand, because their locks go before the moment.
        database = load_database(conn, db_name)
        lacking = _to_pull(conn, database, _last(conn, database)[0])
        store.begin_moment(conn)
        store.lock_rows(conn, database.schema_name, [database.tables[name].sql_name for name in lacking])
        with span("plan"):
            plan = _plan(conn, db_name, lacking)
        if all(table.extent is None for table in plan.tables.values()):
            conn.execute("commit")
        yield plan


def _to_pull(conn: Session, database: Database, last: Manifest | None) -> list[str]:
    """The tables that get their first base. A table that is not as the catalog has it can't be pulled, or its rows add
    up to no known sum: it waits until the resolver has followed its change, but its part of the log and other tables do
    not wait."""
    lacking = _without_base(database, last)
    if not lacking:
        return []
    stopped = stopped_tables(drift(conn, database))
    altered = {marker.table_id for marker in waiting(conn, database.id)}
    return [name for name in lacking if name not in stopped and database.tables[name].id not in altered]


def _without_base(database: Database, last: Manifest | None) -> list[str]:
    tables = {} if last is None else last.tables
    return [
        name
        for name, table in database.tables.items()
        if name not in tables or tables[name].base is None or tables[name].table_id != table.id
    ]


def _last(conn: Session, database: Database) -> tuple[Manifest | None, str]:
    """The manifest that was published last, and its root."""
    published = store.last_published(conn, database.id, database.epoch)
    return (None, "") if published is None else (from_json(published.manifest), published.root)


def _plan(conn: Session, db_name: str, locked: Sequence[str]) -> Plan:
    snapshot = store.export_snapshot(conn)
    database = load_database(conn, db_name)
    number = database.id
    last, last_root = _last(conn, database)
    after = database.floor_ms if last is None else last.to_position
    if database.floor_ms > after:
        raise PlanError(
            f"the log of {db_name} begins after {database.floor_ms}, and what is published ends at {after}: "
            f"changes are missing in between"
        )
    upto = store.read_head(conn, number)
    if last is None and upto == 0 and database.tables:
        # Rows that were there at registration are worth a base before the first write: it is as of position 0, and
        # its stretch has to end after it begins.
        after = -1
    logs = store.read_log_sums(conn, number, after, upto)
    conflicts = store.read_conflict_sums(conn, number, after, upto)
    sums = store.read_table_sums(conn, number)
    # Once more, since a table may have been altered before it was locked.
    lacking = set(_to_pull(conn, database, last)).intersection(locked)
    ever = {} if last is None else {name: files.columns.ever for name, files in last.tables.items()}
    former = []
    for one in _ended(conn, database, logs.keys() | conflicts.keys()):
        columns = file_table(one.table, ever.get(one.table.name, ()))
        ever[one.table.name] = columns.ever
        log, lost = logs.get(one.table.id), conflicts.get(one.table.id)
        former.append(FormerPlan(Shape(columns, after), log, lost, one.last_position))
    tables = {}
    for name, table in database.tables.items():
        shape = Shape(file_table(table, ever.get(name, ())), after)
        extent, taken_back = _rows_to_pull(conn, database, table) if name in lacking else (None, {})
        log, lost = logs.get(table.id), conflicts.get(table.id)
        resummed = extent is None and any(one.dropped_position > after for one in table.former)
        tables[name] = TablePlan(shape, log, lost, sums[table.id], extent, taken_back, resummed)
    cuts = store.read_cuts(conn, number, after, upto, CHANGES_PER_READ)
    earlier = ended_registrations(conn, database, last)
    return Plan(database, after, upto, tuple(cuts), last, tables, snapshot, tuple(former), earlier, last_root)


def _ended(conn: Session, database: Database, numbers: Collection[int]) -> list[Former]:
    """The registrations that have ended of which the log has something."""
    unknown = set(numbers) - database.tables_by_id.keys()
    found = read_former(conn, database.id, unknown) if unknown else []
    unknown -= {one.table.id for one in found}
    if unknown:
        raise PlanError(f"the log has changes of tables of which nothing is known any more: {sorted(unknown)}")
    return found


def _rows_to_pull(
    conn: Session, database: Database, table: Table
) -> tuple[store.Extent | None, Mapping[str, Row | None]]:
    try:
        with conn.transaction():
            taken_back = rows_before(conn, database, table)
    except (UndrainedError, UndecodableError):
        # The table's first base waits for the next run, when the resolver has come to them, or for its registration.
        return None, {}
    return store.read_extent(conn, database.schema_name, table.sql_name), taken_back
