"""Bases of the hunted tables, published during a leak hunt: the rows as the log has them at one position, while
everybody writes, so that pulls are served from Parquet, too."""

from __future__ import annotations

import threading
from pathlib import Path

from anabranch.store.catalog.databases import load_database
from anabranch.store.log.moment import moment, rows_at
from anabranch.store.session.engine import connect
from anabranch.testkit.attack.hunted import DATABASE
from anabranch.testkit.base_writer import BaseWriter, FileRows

PAUSE_S = 0.2
"""Between two bases. A base serves nobody who has lost an audience since, and audiences change all the time. That rule
is not the hunt's to judge, as what was lost was seen once: the tests of pulls from a base do."""


def publish_bases(url: str, root: Path, stop: threading.Event) -> None:
    """Publish bases below ``root`` until ``stop``."""
    with connect(url, application_name="hunt-bases", autocommit=True) as conn:
        database = load_database(conn, DATABASE)
        tables = list(database.tables.values())
        writer = BaseWriter(conn, url, DATABASE, root)
        published = 0
        while not stop.wait(PAUSE_S):
            with moment(conn, database, tables[0]) as at:
                rows = {
                    table.name: [row for some in rows_at(conn, database, table) for row in some] for table in tables
                }
            if at.head > published:
                published = at.head
                writer.publish({name: [FileRows(found, published)] for name, found in rows.items()}, upto=published)
