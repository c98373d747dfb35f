"""Decides whether a pull is served from Parquet: from which published base, or why not.

States of a base, for one process:

* *unproven*: this process has not compared its rows with their sums. The first pull that would be served from it has it
  proven, in a thread beside those that read, and waits for ``base_proof_wait_ms``; then it goes to Postgres, and a
  later one finds it proven. Buckets that an earlier base had as well, in the same files, are proven already.
* *proven*: each pull still checks that its files are the same, by name, size and time of change.
* *broken*: a file is missing, or not what was published. It is logged once, pulls go to Postgres, and after
  ``base_retry_ms`` it is checked again. Only the newest base can be broken: files of an older one are removed in time,
  and a pull that would go on with it has to begin anew.

``why_not`` decides, pull by pull, whether a base fits the pull, whatever the base's state.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

import structlog

from anabranch.clock import Clock
from anabranch.columnar.base_proof import BaseProver, PublishedBase
from anabranch.columnar.evidence import EvidenceError
from anabranch.columnar.manifest import Manifest, ManifestError, from_json
from anabranch.runtime import metrics
from anabranch.store.catalog.databases import Database
from anabranch.store.lake.published_bases import FoundBase, find_base, read_manifest
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import position_pb2
from anabranch.values import Column, Kind, Table
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.moments import seen_by

_MINUTE_MS = 60_000
_KEPT = 16
"""Manifests that are remembered."""
_log = structlog.get_logger()


class WhyPostgres(StrEnum):
    """Why a pull is not served from Parquet: the values of a label of ``anabranch_pull_sources``."""

    RESUMED = "resumed"
    """It goes on from where a pull of rows from Postgres broke."""
    RESTRICTED = "restricted"
    """Of one of its tables the node sees some rows only, and which ones can't be told of the base: see
    ``pull_source``."""
    NONE = "none"
    """Nothing is published in this epoch, or the policy says never."""
    OLD = "old"
    FLOOR = "floor"
    """The log no longer goes back to it."""
    SCHEMA = "schema"
    """It is of another schema version, or lacks a table."""
    NODE = "node"
    """The node has seen more than it shows, and would take that for a history that was rewound; or it was."""
    UNPROVEN = "unproven"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Served:
    """The base that a pull is served from."""

    found: FoundBase
    base: PublishedBase
    chain: bytes


def why_not(
    found: FoundBase, database: Database, state: position_pb2.NodeState, now_ms: int, *, resumed: bool
) -> WhyPostgres | None:
    """Return why a published base does not fit a pull, its manifest and its files left aside. A pull that is
    ``resumed`` goes on with an old one, of a node that may write meanwhile."""
    if any(one.is_lost(found.seen_chain, found.floor, found.head) for one in seen_by(database, state.greatest_seen)):
        return WhyPostgres.NODE
    if found.chain is None or found.floor > found.position:
        return WhyPostgres.FLOOR
    if found.schema_version != database.schema_version:
        return WhyPostgres.SCHEMA
    age_ms = 0 if found.lacks_since is None else now_ms - found.lacks_since
    if not resumed and age_ms > database.policy.pull_base_max_age_minutes * _MINUTE_MS:
        return WhyPostgres.OLD
    # Verdicts that came since the pull began say nothing of the rows that it had brought by then.
    beyond = 0 if resumed else max(state.greatest_seen.server_timestamp_ms, found.acknowledged)
    if max(state.acknowledged, beyond) > found.position:
        return WhyPostgres.NODE
    return None


def lacks(manifest: Manifest, database: Database, tables: Sequence[Table]) -> bool:
    """Whether a manifest is of another schema version, or lacks the base of one of some tables as they are now."""
    if manifest.schema_version != database.schema_version:
        return True
    for table in tables:
        files = manifest.tables.get(table.name)
        if files is None or files.base is None or files.table_id != table.id:
            return True
        known = files.columns.table
        if known.key_columns != table.key_columns or list(map(_form, known.columns)) != list(map(_form, table.columns)):
            return True
    return False


def _form(column: Column) -> tuple[str, Kind, Kind | None, str]:
    """The properties of a column that a manifest records."""
    return column.name, column.kind, column.element_kind, column.postgres_type


class Bases:
    """The published bases of all databases, as this process knows them."""

    def __init__(self, settings: SnapshotSettings, clock: Clock, pool: AsyncPool) -> None:
        self._settings = settings
        self._clock = clock
        self._pool = pool
        self._stopping = threading.Event()
        self._prover = BaseProver(self._stopping)
        self._looking = ThreadPoolExecutor(settings.pull_sessions, thread_name_prefix="base-look")
        self._proving = ThreadPoolExecutor(1, thread_name_prefix="base-proof")
        self._opened: OrderedDict[tuple[int, str], PublishedBase] = OrderedDict()
        self._broken: dict[tuple[int, str], float] = {}
        self._proofs: set[asyncio.Task[bool]] = set()

    async def choose(
        self, database: Database, tables: Sequence[Table], state: position_pb2.NodeState, run_id: str | None = None
    ) -> Served | WhyPostgres:
        """The base for a pull of some tables, or why there is none. ``run_id``: the run that the pull goes on from.

        Raises:
            psycopg.Error: the published base or its manifest can't be read.
        """
        if run_id is None and not database.policy.pull_base_max_age_minutes:
            return WhyPostgres.NONE
        async with self._pool.connection() as conn:
            seen_ms = state.greatest_seen.server_timestamp_ms
            found = await find_base(conn, database.id, database.epoch, state.node.id, run_id, seen_ms)
        if found is None:
            return WhyPostgres.NONE
        why = why_not(found, database, state, self._clock.now_ms(), resumed=run_id is not None)
        if why is not None or found.chain is None:
            return why or WhyPostgres.FLOOR
        since = self._broken.get((database.id, found.run_id))
        if since is not None and time.monotonic() - since < self._settings.base_retry_ms / 1000:
            return WhyPostgres.BROKEN
        try:
            base = await self._open(database, found)
        except EvidenceError as error:
            self._break(database, found, error)
            return WhyPostgres.BROKEN
        if base is None:
            return WhyPostgres.NONE
        if lacks(base.manifest, database, tables):
            return WhyPostgres.SCHEMA
        proof = asyncio.create_task(self._prove(database, found, base, [table.name for table in tables]))
        self._proofs.add(proof)
        proof.add_done_callback(self._proofs.discard)
        done, _ = await asyncio.wait({proof}, timeout=self._settings.base_proof_wait_ms / 1000)
        if not done:
            return WhyPostgres.UNPROVEN
        return Served(found, base, found.chain) if proof.result() else WhyPostgres.BROKEN

    async def broke(self, database: Database, served: Served, error: EvidenceError) -> None:
        """A base turned out to be broken while it was read: nothing is taken as proven any more, unless a newer one was
        published meanwhile.

        Raises:
            psycopg.Error: the published base can't be read.
        """
        async with self._pool.connection() as conn:
            found = await find_base(conn, database.id, database.epoch, "", served.found.run_id)
        if found is not None and found.newest:
            self._prover = BaseProver(self._stopping)
            self._break(database, found, error)

    def _break(self, database: Database, found: FoundBase, error: EvidenceError) -> None:
        run_id = found.run_id
        if not found.newest:
            _log.info("an older base is not there any more", database=database.name, run=run_id, detail=error)
            return
        self._broken[database.id, run_id] = time.monotonic()
        metrics.gauge("anabranch_base_broken", 1, database=database.name)
        text = "pulls go to Postgres: the published base is not as proven"
        _log.error(text, database=database.name, run=run_id, detail=error)

    async def _open(self, database: Database, found: FoundBase) -> PublishedBase | None:
        key = database.id, found.run_id
        opened = self._opened.get(key)
        if opened is None:
            async with self._pool.connection() as conn:
                content = await read_manifest(conn, database.id, found.run_id)
            if content is None:
                return None
            try:
                manifest = from_json(content)
            except ManifestError as error:
                raise EvidenceError(f"run {found.run_id}: {error}") from error
            opened = self._opened[key] = PublishedBase(found.root, manifest)
            while len(self._opened) > _KEPT:
                self._opened.popitem(last=False)
        return opened

    def _mend(self, database: Database, found: FoundBase) -> None:
        """Note that the newest base is as published: no pull begins with an older one any more."""
        if found.newest:
            for key in [key for key in self._broken if key[0] == database.id]:
                del self._broken[key]
            metrics.gauge("anabranch_base_broken", 0, database=database.name)

    async def _prove(self, database: Database, found: FoundBase, base: PublishedBase, names: Sequence[str]) -> bool:
        """Whether a base is proven, now or already."""
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        rows = 0
        try:
            unproven = await loop.run_in_executor(self._looking, self._prover.unproven, base, names)
            if unproven:
                rows = await loop.run_in_executor(self._proving, self._prover.prove, base, unproven)
        except EvidenceError as error:
            self._break(database, found, error)
            return False
        if self._broken.get((database.id, found.run_id), began) > began:
            # Another call found it broken meanwhile.
            return False
        self._mend(database, found)
        if rows:
            run_id, seconds = found.run_id, round(time.monotonic() - began, 2)
            _log.info("proved a published base", database=database.name, run=run_id, rows=rows, seconds=seconds)
        return True

    def close(self) -> None:
        """End the threads; a proof that is under way ends after its bucket."""
        self._stopping.set()
        for proof in self._proofs:
            proof.cancel()
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._proving.shutdown(wait=False, cancel_futures=True)
