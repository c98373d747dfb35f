"""Plants one leak in a service of a hunt, as the service starts: ``ANABRANCH_TEST_PLANT`` names it. The hunt must find
it, or it would not find a real one either."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

SNAPSHOT, RESOLVER = "anabranch_snapshot", "anabranch_conflict_resolver"
EVERYBODY = frozenset(f"team:t{number}" for number in range(1, 5))
"""The audiences of all teams of a hunt."""


def row_in_log() -> None:
    """The log shows rows to everybody."""
    from anabranch_snapshot import visible

    visible.effect_shown = lambda *_: visible.ShownPart.AS_IT_IS


def row_in_pull() -> None:
    """A pull has the rows of all teams."""
    from anabranch_snapshot.pulls import pull

    pull._Sight.of = lambda self, wanted: self.audiences | EVERYBODY  # type: ignore[method-assign]


def row_in_pull_from_parquet() -> None:
    """A pull from Parquet has the rows of all teams."""
    from anabranch_snapshot.pulls import seen_rows

    begin: Any = seen_rows.SeenRows.__init__

    def see_all(self: Any, table: Any, audience: Any, audiences: frozenset[str], session: Any) -> None:
        begin(self, table, audience, audiences | EVERYBODY, session)

    seen_rows.SeenRows.__init__ = see_all  # type: ignore[method-assign]


def explained_row() -> None:
    """A batch is explained by rows that its principal may not read."""
    from anabranch_conflict_resolver.batch import rights

    rights.Rights.may_read = lambda self, audiences: True  # type: ignore[method-assign]


def server_row_in_verdict() -> None:
    """A verdict has the server's row, whoever may read it."""
    from anabranch_conflict_resolver.batch import rights

    # A batch that may not write a row is refused before its verdict could have it.
    rights.Rights.may_read = rights.Rights.may_write = lambda self, audiences: True  # type: ignore[method-assign]


def losing_value_of_a_conflict() -> None:
    """A value that lost is shown to everybody."""
    from anabranch_snapshot import visible

    visible.loser_shown = lambda *_: True


def losing_value_in_a_list() -> None:
    """Conflicts are listed for everybody."""
    from anabranch.store.log import conflicts

    page = conflicts._page
    conflicts._page = lambda wanted, *args: page(replace(wanted, audiences=None), *args)


def sum_of_others() -> None:
    """Sums are told of all teams."""
    from anabranch.store.log.reader import read_audience_sums as read
    from anabranch_snapshot import viewers

    async def of_all(conn: Any, database_id: int, audiences: Iterable[str]) -> Any:
        return await read(conn, database_id, {*audiences, *EVERYBODY})

    viewers.read_audience_sums = of_all  # type: ignore[attr-defined]


def count_of_all() -> None:
    """The estimate of a restricted table's rows is told."""
    from anabranch_snapshot import describe

    tables = describe._tables

    def with_counts(database: Any, counts: dict[str, int], sure: Any) -> Any:
        return tables(database, {**counts, **dict.fromkeys(database.restricted, 1)}, sure)

    describe._tables = with_counts


PLANTS: Mapping[str, tuple[str, Callable[[], None]]] = {
    "row in log": (SNAPSHOT, row_in_log),
    "row in pull": (SNAPSHOT, row_in_pull),
    "row in pull from Parquet": (SNAPSHOT, row_in_pull_from_parquet),
    "row in Explain": (RESOLVER, explained_row),
    "server row in verdict": (RESOLVER, server_row_in_verdict),
    "losing value in log": (SNAPSHOT, losing_value_of_a_conflict),
    "losing value in list": (RESOLVER, losing_value_in_a_list),
    "sum": (SNAPSHOT, sum_of_others),
    "count": (SNAPSHOT, count_of_all),
}
"""By name: the service that leaks, and the change that makes it leak."""

if (wanted := os.environ.get("ANABRANCH_TEST_PLANT")) is not None:
    service, plant = PLANTS[wanted]
    if service in sys.orig_argv:
        plant()
        print(f"planted: {wanted}", file=sys.stderr)
