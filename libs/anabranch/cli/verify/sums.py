"""The sums of a table's rows at one moment, and the audiences for which the log carries other ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import closing

from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sums import RowSums, sum_to_bytes
from anabranch.store.log.moment import rows_at
from anabranch.store.session.engine import Session
from anabranch.values import Table
from anabranch.values.canonical import RowEncoder


def stored_sums(conn: Session, database: Database, table: Table) -> RowSums:
    """The sums of the rows at the moment's position, by audience where the table is restricted. Raises as
    ``moment.rows_at``."""
    sums, row_hash = RowSums(), RowEncoder(table).hash
    audience = database.restricted.get(table.name)
    of_table = None if audience is None else RowAudiences(table, audience)
    with closing(rows_at(conn, database, table)) as chunks:
        for rows in chunks:
            of_rows: Iterable[Iterable[str]] = itertools.repeat(())
            if of_table is not None:
                of_rows = of_table.of_all(conn, rows)
            for row, audiences in zip(rows, of_rows, strict=False):
                sums.add(row_hash(row), audiences)
    return sums


def differing_audiences(stored: RowSums, kept: Mapping[str, tuple[int, bytes]]) -> dict[str, tuple[int, int]]:
    """The audiences whose sums are not those that are kept, each with the number of its rows and of those that are
    logged."""
    nothing = (0, bytes(16))
    found = {name: (count, sum_to_bytes(total)) for name, (count, total) in stored.audiences.items()}
    names = sorted(found.keys() | kept.keys())
    pairs = {name: (found.get(name, nothing), kept.get(name, nothing)) for name in names}
    return {name: (here[0], there[0]) for name, (here, there) in pairs.items() if here != there}
