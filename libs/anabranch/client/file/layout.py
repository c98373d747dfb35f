"""Our own tables in a device's file. Their names start with ``_db_``; no synced table's name may."""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x616E6272
"""Kept in ``PRAGMA application_id``: the mark of a device's file, "anbr". Files from before it was set have 0."""

FORMAT = 9
"""Kept in ``PRAGMA user_version``; a file of a later format is refused."""

PLAIN_DECIMALS = 4
"""Up to this format columns of decimals had no collation: ``redeclare`` adds it."""

NEWEST_KIND = 13
"""The last kind of columns that releases of this format know. A table with a later one was set aside: a release that
has a further kind has a further format, whose upgrade sets ``schema_version`` to 0, so that the tables are asked for
anew."""

PREFIX = "_db_"

_SEEN = """CREATE TABLE _db_seen (
    position INTEGER PRIMARY KEY, epoch TEXT NOT NULL, token BLOB NOT NULL)"""

_WRITER = """CREATE TABLE _db_writer (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    open INTEGER NOT NULL DEFAULT 0,
    refuse INTEGER NOT NULL DEFAULT 1)"""
_ONE_WRITER = "INSERT INTO _db_writer (one) VALUES (1)"

# The audiences whose rows the file holds, each row's audiences, and the sums of what it holds: see ``row_audiences``,
# ``audience_sums`` and ``held``.
_HELD = "CREATE TABLE _db_held (audience TEXT PRIMARY KEY) WITHOUT ROWID"
_ROW_AUDIENCES = """CREATE TABLE _db_row_audiences (
    tbl TEXT NOT NULL, key TEXT NOT NULL, audiences TEXT NOT NULL, PRIMARY KEY (tbl, key)) WITHOUT ROWID"""
_AUDIENCE_SUMS = """CREATE TABLE _db_audience_sums (
    tbl TEXT NOT NULL,
    audience TEXT NOT NULL,
    count INTEGER NOT NULL,
    hash BLOB NOT NULL,
    disagrees INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tbl, audience)) WITHOUT ROWID"""

STATEMENTS = (
    # One row: the node that this file is and how far it has come. Times and positions are milliseconds. ``greatest_*``
    # is the greatest Position seen with its token, ``seen_ms`` the greatest position seen anywhere, or the server's
    # time where that is an hour later; ``tables_version`` grows when ``_db_tables`` changes, so that every process
    # notices; ``credential`` holds digests of the API keys that the file was last used with, see ``owner``;
    # ``pruned_ms`` is when old batches were last removed, by the server's clock; ``snapshot_due``: the log can't be
    # read from the cursor, all tables are to be pulled; 2: into another history, see ``rewind``. ``chosen``: the names
    # of the tables that the device has chosen, as JSON, NULL for all; ``describe_due``: the choice has added tables,
    # for which the server is to be asked; see ``choice``. ``audience_choice``: the audiences that the device has
    # chosen, as JSON, NULL for all; ``held_digest``: of the audiences that it holds, empty before the server has told
    # them; ``gains_due``: 1 where rows of some of these may have to be pulled; see ``held``. ``app_version``: the
    # schema version that the app was built for, 0 where it takes the names of the day; ``needs_version``: the one that
    # it would need by now, 0 where the server can still tell its own; see ``pinned``. ``ddl_version``: the schema
    # version of the tables as they are here, 0 where that is not known; ``describe_at``: the position from which on the
    # server is to be asked for the tables once more, 0 for none; see ``describe``.
    """CREATE TABLE _db_state (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        db_name TEXT NOT NULL,
        node_id TEXT NOT NULL,
        node_name TEXT NOT NULL,
        node_token BLOB NOT NULL DEFAULT x'',
        principal TEXT,
        credential BLOB,
        last_id TEXT NOT NULL DEFAULT '',
        cursor_ms INTEGER NOT NULL DEFAULT 0,
        greatest_epoch TEXT NOT NULL DEFAULT '',
        greatest_ms INTEGER NOT NULL DEFAULT 0,
        greatest_token BLOB NOT NULL DEFAULT x'',
        seen_ms INTEGER NOT NULL DEFAULT 0,
        schema_version INTEGER NOT NULL DEFAULT 0,
        tables_version INTEGER NOT NULL DEFAULT 0,
        limits BLOB NOT NULL DEFAULT x'',
        policy BLOB NOT NULL DEFAULT x'',
        pulls INTEGER NOT NULL DEFAULT 0,
        snapshot_due INTEGER NOT NULL DEFAULT 0,
        pruned_ms INTEGER NOT NULL DEFAULT 0,
        chosen TEXT,
        describe_due INTEGER NOT NULL DEFAULT 0,
        audience_choice TEXT,
        held_digest BLOB NOT NULL DEFAULT x'',
        gains_due INTEGER NOT NULL DEFAULT 0,
        app_version INTEGER NOT NULL DEFAULT 0,
        needs_version INTEGER NOT NULL DEFAULT 0,
        ddl_version INTEGER NOT NULL DEFAULT 0,
        describe_at INTEGER NOT NULL DEFAULT 0)""",
    # One row a synced table, by its identity: ``value`` is its serialized anabranch.v1.Table as it is in the file, with
    # the names that the app knows; ``today`` is the server's, where that is another one. ``stage``: 'new' before its
    # first pull is complete, 'live', or 'aside' when it has to be pulled again for ``reason``. ``first_ms`` and
    # ``last_ms``: the earliest and latest as_of of its last pull. ``count`` and ``hash``: the table sum of its base
    # rows. ``pull_*``: a pull under way, with its resume token; its rows are in the table itself while it is new, else
    # in ``pull_table``.
    # ``pull_told``: what the end of a restricted table's pull told of audiences. ``gain_*``: a pull under way of the
    # audiences in ``gain``, a JSON list, into a live table. ``absent_ms``: the server has described its tables without
    # this one, and the log is to be read up to here before it is given up; 0 where it has not.
    """CREATE TABLE _db_tables (
        name TEXT PRIMARY KEY,
        ordinal INTEGER NOT NULL,
        value BLOB NOT NULL,
        stage TEXT NOT NULL DEFAULT 'new',
        reason TEXT NOT NULL DEFAULT '',
        first_ms INTEGER NOT NULL DEFAULT 0,
        last_ms INTEGER NOT NULL DEFAULT 0,
        count INTEGER NOT NULL DEFAULT 0,
        hash BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
        verified INTEGER NOT NULL DEFAULT 1,
        disagrees INTEGER NOT NULL DEFAULT 0,
        pull_first_ms INTEGER,
        pull_last_ms INTEGER,
        pull_epoch TEXT NOT NULL DEFAULT '',
        pull_token BLOB NOT NULL DEFAULT x'',
        pull_resume BLOB NOT NULL DEFAULT x'',
        pull_count INTEGER NOT NULL DEFAULT 0,
        pull_hash BLOB NOT NULL DEFAULT x'',
        pull_done INTEGER NOT NULL DEFAULT 0,
        pull_table TEXT,
        pull_told BLOB NOT NULL DEFAULT x'',
        gain TEXT NOT NULL DEFAULT '',
        gain_resume BLOB NOT NULL DEFAULT x'',
        today BLOB NOT NULL DEFAULT x'',
        absent_ms INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
    # The queue. ``value``: the frozen payload. ``server_timestamp_ms``: the position of its verdict, NULL before.
    # ``verdict``: the serialized Verdict. ``seen``: the log or a pull has shown it, and it waits for an earlier own
    # batch that touches one of its rows. ``asked_again``: its verdict was passed unseen and asked for again.
    """CREATE TABLE _db_mutations_queue (
        id TEXT PRIMARY KEY,
        value BLOB NOT NULL,
        server_timestamp_ms INTEGER,
        basis INTEGER NOT NULL,
        verdict BLOB,
        seen INTEGER NOT NULL DEFAULT 0,
        asked_again INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX _db_mutations_queue_seen ON _db_mutations_queue (id) WHERE seen",
    "CREATE INDEX _db_mutations_queue_unsent ON _db_mutations_queue (id) WHERE server_timestamp_ms IS NULL",
    "CREATE INDEX _db_mutations_queue_decided ON _db_mutations_queue (server_timestamp_ms) "
    "WHERE server_timestamp_ms IS NOT NULL AND NOT seen",
    # Which rows the queue's batches touch: the overlay's index. Keys are key texts.
    """CREATE TABLE _db_pending_rows (
        tbl TEXT NOT NULL, key TEXT NOT NULL, batch TEXT NOT NULL,
        PRIMARY KEY (tbl, key, batch)) WITHOUT ROWID""",
    "CREATE INDEX _db_pending_rows_batch ON _db_pending_rows (batch)",
    # The base image of every row that a batch in the queue touches: a serialized Row, NULL where the base has none.
    "CREATE TABLE _db_base (tbl TEXT NOT NULL, key TEXT NOT NULL, row BLOB, PRIMARY KEY (tbl, key)) WITHOUT ROWID",
    # Rejected and expired batches. ``verdict``: the serialized Verdict. ``first_shown_ms``: when the app first saw it,
    # by the device's clock, 0 before. ``shown_from_ms``: the same by the server's clock, or the first known time of
    # that clock afterwards, 0 before; from then on the letter is kept for two weeks.
    """CREATE TABLE _db_mutations_queue_dead (
        id TEXT PRIMARY KEY,
        value BLOB NOT NULL,
        basis INTEGER NOT NULL,
        verdict BLOB NOT NULL,
        died_ms INTEGER NOT NULL,
        first_shown_ms INTEGER NOT NULL DEFAULT 0,
        shown_from_ms INTEGER NOT NULL DEFAULT 0,
        still_shown INTEGER NOT NULL DEFAULT 0)""",
    # Accepted batches that have left the queue, kept for as long as a restored server may have lost them. ``verdict``:
    # the serialized Verdict, NULL where the log showed the batch before its verdict came.
    """CREATE TABLE _db_confirmed (
        id TEXT PRIMARY KEY, value BLOB NOT NULL, position INTEGER NOT NULL, basis INTEGER NOT NULL, verdict BLOB)""",
    # The first batch of every call whose answer has not come.
    "CREATE TABLE _db_unanswered (id TEXT PRIMARY KEY) WITHOUT ROWID",
    # Positions seen with their tokens, ever sparser the older they are: see ``seen``.
    _SEEN,
    # One row. ``open``: a transaction of ours is writing rows; no other transaction ever sees it set. ``refuse``:
    # whether foreign writes are refused. See ``guards``.
    _WRITER,
    _ONE_WRITER,
    _HELD,
    _ROW_AUDIENCES,
    _AUDIENCE_SUMS,
)

OF_TABLES = {
    "_db_tables": "name",
    "_db_base": "tbl",
    "_db_pending_rows": "tbl",
    "_db_row_audiences": "tbl",
    "_db_audience_sums": "tbl",
}
"""Our own tables with rows about synced tables, and the column that names the synced table."""

OF_QUEUE = "_db_pending_rows"
"""The one of them whose rows belong to the queue, which stays when a table goes."""

_OWNERLESS = frozenset({"_db_writer"})
"""Our own tables that hold nothing of the file's user; without their rows the file can't be written."""

UPGRADES = {
    1: ("ALTER TABLE _db_confirmed ADD COLUMN verdict BLOB",),
    2: (
        _SEEN,
        "INSERT INTO _db_seen (position, epoch, token) "
        "SELECT greatest_ms, greatest_epoch, greatest_token FROM _db_state WHERE greatest_token != x''",
    ),
    3: (_WRITER, _ONE_WRITER),
    4: (),
    5: ("ALTER TABLE _db_state ADD COLUMN credential BLOB",),
    6: (
        "ALTER TABLE _db_state ADD COLUMN chosen TEXT",
        "ALTER TABLE _db_state ADD COLUMN describe_due INTEGER NOT NULL DEFAULT 0",
    ),
    7: (
        "ALTER TABLE _db_state ADD COLUMN audience_choice TEXT",
        "ALTER TABLE _db_state ADD COLUMN held_digest BLOB NOT NULL DEFAULT x''",
        "ALTER TABLE _db_state ADD COLUMN gains_due INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE _db_tables ADD COLUMN pull_told BLOB NOT NULL DEFAULT x''",
        "ALTER TABLE _db_tables ADD COLUMN gain TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE _db_tables ADD COLUMN gain_resume BLOB NOT NULL DEFAULT x''",
        _HELD,
        _ROW_AUDIENCES,
        _AUDIENCE_SUMS,
    ),
    8: (
        "ALTER TABLE _db_state ADD COLUMN app_version INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE _db_state ADD COLUMN needs_version INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE _db_state ADD COLUMN ddl_version INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE _db_state ADD COLUMN describe_at INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE _db_tables ADD COLUMN today BLOB NOT NULL DEFAULT x''",
        "ALTER TABLE _db_tables ADD COLUMN absent_ms INTEGER NOT NULL DEFAULT 0",
        # An earlier release knew no positions of schema changes: the tables are asked for anew.
        "UPDATE _db_state SET schema_version = 0",
    ),
}
"""The statements that turn a file of each older format into one of the next format."""


def bring_up(conn: sqlite3.Connection, found: int) -> None:
    """Bring a file of the format ``found`` (0: new) to the present one, and give it the mark, where it lacks them; in a
    transaction."""
    if found < FORMAT:
        steps = [UPGRADES[number] for number in range(found, FORMAT)] if found else [STATEMENTS]
        for statement in (statement for step in steps for statement in step):
            conn.execute(statement)
        conn.execute(f"PRAGMA user_version = {FORMAT}")
    if conn.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def emptied(conn: sqlite3.Connection) -> list[str]:
    """The own tables to empty when the file gets another owner. The list is read from the file, so that it includes the
    tables of later formats."""
    names = conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    return [name for (name,) in names if name.startswith(PREFIX) and name not in _OWNERLESS]
