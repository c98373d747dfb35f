"""Table sums as the server keeps them and as a tablet does: of all rows of a table, and of those of each audience."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from anabranch.client.file import audience_sums
from anabranch.client.reading import sums
from anabranch.demo.airports import RESTRICTED
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sums import kept_audience_sums, sum_to_bytes
from anabranch.store.inbox.take import read_sums
from anabranch.store.session.engine import Session

Sum: TypeAlias = tuple[int, bytes]
"""A number of rows, and the sum of their hashes."""
Sums: TypeAlias = Mapping[tuple[str, str], Sum]
"""By table and audience; the audience "" stands for all rows of the table."""

_NO_ROWS: Sum = (0, bytes(16))


def of_server(conn: Session, database: Database) -> Sums:
    """The sums that the server keeps. Raises psycopg.Error."""
    kept_sums = read_sums(conn, database.tables_by_id)
    found: dict[tuple[str, str], Sum] = {
        (database.tables_by_id[one].name, ""): (count, sum_to_bytes(total)) for one, (count, total) in kept_sums.items()
    }
    for name in database.restricted:
        kept = kept_audience_sums(conn, database.tables[name].id)
        found |= {(name, audience): kept_sum for audience, kept_sum in kept.items()}
    return found


def of_tablet(file: Path) -> Sums:
    """The sums that a tablet's file keeps. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as device:
        tables = sums.kept(device)
        found = {(table, ""): kept_sum for table, kept_sum in tables.items()}
        for table in tables:
            kept = audience_sums.all_of(device, table)
            found |= {(table, audience): kept_sum for audience, kept_sum in kept.items()}
    return found


def visible(server: Sums, audience: str) -> Sums:
    """The sums of a tablet that holds every row of the open tables, of the others those of one audience, and nothing
    beside them."""
    found = {(table, one): kept for (table, one), kept in server.items() if table not in RESTRICTED}
    for table in RESTRICTED:
        found[table, ""] = found[table, audience] = server.get((table, audience), _NO_ROWS)
    return found
