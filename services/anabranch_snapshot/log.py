"""Reading the log for calls: a page from a place, or the reason why that place can't be read from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from anabranch.clock import Clock
from anabranch.runtime.errors import Failure
from anabranch.store.catalog import Database, UnknownDatabaseError
from anabranch.store.engine import AsyncPool, AsyncSession
from anabranch.store.log_reader import (
    NO_LIMIT,
    Stretch,
    Sums,
    read_seen,
    read_stretch,
    read_sums,
)
from anabranch.store.seal import EMPTY_CHAIN, chain_of
from anabranch.v1 import change_pb2, errors_pb2, position_pb2
from anabranch_snapshot.databases import Databases
from anabranch_snapshot.nodes import Nodes
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.pages import to_page, to_position


@dataclass(frozen=True, slots=True)
class Reading:
    """A page, the place where it ends, and what stood beside it. ``moved``: a reader gets ahead by it."""

    page: change_pb2.Page
    place: Place
    stretch: Stretch
    moved: bool


class Log:
    """The log of all databases. At most ``sessions`` reads are under way; others wait for their turn."""

    def __init__(self, pool: AsyncPool, databases: Databases, nodes: Nodes, clock: Clock, sessions: int) -> None:
        self._pool = pool
        self._databases = databases
        self._nodes = nodes
        self._clock = clock
        self._turns = asyncio.Semaphore(sessions)

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        async with self._turns, self._pool.connection() as conn:
            yield conn

    async def read(self, database: Database, place: Place, max_bytes: int, up_to: int = NO_LIMIT) -> Reading:
        """The next page from ``place`` on, of positions up to ``up_to``.

        Raises:
            Failure: BEHIND_FLOOR, INVALID_POSITION, UNKNOWN_DATABASE.
            psycopg.Error: the log can't be read.
        """
        try:
            async with self._session() as conn:
                stretch = await read_stretch(
                    conn, database.id, place.base, place.cursor, max_bytes=max_bytes, up_to=up_to
                )
        except UnknownDatabaseError:
            raise self._gone(database) from None
        self._check_history(database, stretch.epoch, stretch.schema_version)
        if stretch.floor >= place.cursor.least_needed:
            raise Failure(
                errors_pb2.REASON_BEHIND_FLOOR,
                f"the log goes back to {stretch.floor}; take a new snapshot",
                floor=str(stretch.floor),
            )
        if place.cursor.position > stretch.head:
            raise beyond_head(place.cursor.position, stretch.head)
        if not stretch.known_base:
            raise Failure(
                errors_pb2.REASON_INVALID_POSITION, f"no group was ever committed at {place.base}: take a new snapshot"
            )
        known = self._databases.current(database)
        names = await self._nodes.names(database.id, (item.node_id for item in stretch.items))
        end = Place(stretch.reached, stretch.end)
        return Reading(to_page(stretch, known, names), end, stretch, end != place)

    async def sums(self, database: Database) -> Sums:
        """Head and sums of one moment.

        Raises:
            Failure: INVALID_POSITION, UNKNOWN_DATABASE.
            psycopg.Error: they can't be read.
        """
        try:
            async with self._session() as conn:
                sums = await read_sums(conn, database.id)
        except UnknownDatabaseError:
            raise self._gone(database) from None
        self._check_history(database, sums.epoch, sums.schema_version)
        return sums

    async def check_seen(self, database: Database, seen: position_pb2.Position) -> int:
        """Check the greatest position that a node ever saw. Gives the head's position.

        Raises:
            Failure: INVALID_POSITION.
            psycopg.Error: the log can't be read.
        """
        position = seen.server_timestamp_ms
        async with self._session() as conn:
            head, chain, floor = await read_seen(conn, database.id, position)
        if not seen.epoch and not position and not seen.token:
            return head
        if seen.epoch != database.epoch:
            raise Failure(errors_pb2.REASON_INVALID_POSITION, "greatest_seen is of another history")
        if not seen.token and position <= head:
            # Given without a seal where its chain was not known any more: nothing can be compared.
            return head
        sealed = chain_of(database.seal_key, database.epoch, position, seen.token)
        if sealed is None:
            raise Failure(errors_pb2.REASON_INVALID_POSITION, "greatest_seen is damaged: its seal does not fit")
        if position > head:
            raise beyond_head(position, head)
        if position == 0:
            chain = EMPTY_CHAIN
        # At the floor and below it groups may be gone; above it, one that is not there was lost.
        if chain != sealed and (chain is not None or position > floor):
            raise Failure(errors_pb2.REASON_INVALID_POSITION, "greatest_seen contradicts the log: history was rewound")
        return head

    def state(
        self, database: Database, position: int, chain: bytes | None, floor: int, schema_version: int
    ) -> position_pb2.ServerState:
        """What an answer says of the database, settled at ``position``."""
        return position_pb2.ServerState(
            settled=to_position(database, position, chain),
            floor=floor,
            schema_version=schema_version,
            server_time_ms=self._clock.now_ms(),
        )

    def _check_history(self, database: Database, epoch: str, schema_version: int) -> None:
        if schema_version != self._databases.current(database).schema_version:
            self._databases.look()
        if epoch != database.epoch:
            self._databases.look()
            raise Failure(errors_pb2.REASON_INVALID_POSITION, "the position is of another history: it was rewound")

    def _gone(self, database: Database) -> Failure:
        self._databases.look()
        return Failure(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {database.name!r}")


def beyond_head(position: int, head: int) -> Failure:
    """The failure of a reader that stands where the log has not come to."""
    return Failure(errors_pb2.REASON_INVALID_POSITION, f"{position} is beyond the head {head}: take a new snapshot")
