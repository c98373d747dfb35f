"""A block under the search path for SQL of the application that the services run themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.store.audiences.queries import OUR_PATH
from anabranch.store.session.binary import Connection, run
from anabranch.store.session.engine import FIXED_SETTINGS
from anabranch.values.postgres_binary import text

_PATH = b"select pg_catalog.current_setting('search_path')"
_SET_PATH = b"select pg_catalog.set_config('search_path', $1::text, true)"


@contextmanager
def our_path(conn: Connection) -> Iterator[None]:
    """Find nothing by its name alone but the system's own in this block. Between the statements of a wave the path is
    the application's: a function or an operator of just the right types that somebody has made there would be taken
    for the system's. After a failure the path goes back with the transaction or its savepoint. Raises psycopg.Error."""
    [(path,)] = run(conn, _PATH, []).fetchall()
    if path == FIXED_SETTINGS["search_path"]:
        yield
        return
    run(conn, _SET_PATH, [text(OUR_PATH)])
    yield
    run(conn, _SET_PATH, [text(path)])
