"""A resolver's cache of a database from one group to the next, and the check whether it is still valid."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

import structlog

from anabranch.store.audiences.principals import Given
from anabranch.store.audiences.sums import AudienceSums
from anabranch.store.capture.captured import tables_with_code
from anabranch.store.capture.older_images import OlderImages
from anabranch.store.catalog.databases import Database, load_database, load_without_key
from anabranch.store.catalog.drift import drift, fingerprint, stopped_tables
from anabranch.store.ddl.images import image_shapes
from anabranch.store.ddl.install import installed
from anabranch.store.ddl.markers import is_any_waiting
from anabranch.store.ddl.notice import notice
from anabranch.store.inbox.take import Head, Taken
from anabranch.store.session.engine import Session
from anabranch.store.session.plans import plan_for
from anabranch_conflict_resolver.batch.decode import Decoded
from anabranch_conflict_resolver.captured.outstanding import Outstanding
from anabranch_conflict_resolver.group.table import Sums
from anabranch_conflict_resolver.group.tables import SyncedDatabase, compile_database

_log = structlog.get_logger()
_LOOK_S = 2.0
"""How long, in seconds, a change of a table's shape may go unseen where nothing fails for it; what is known of
principals is at most so old."""


CAREFUL_S = 30.0
_MOST_KEPT = 100_000
_LONGEST_DRAIN_MS = 600_000
_LEAST_ALLOWED_MS = 20_000


@dataclass(slots=True)
class DrainTrouble:
    """Groups that have failed since captured changes were last drained. ``alone``: the next group has none of the
    batches, so that it shows whether the changes are at fault; ``innocent``: they were not, the last time.
    ``failures``: of groups that had nothing else. ``allowed_ms``: how long a statement of the next one may take, where
    the last one ran out of time; 0 is what all may."""

    beside: bool = False
    """The last group had captured changes to drain beside its batches."""
    alone: bool = False
    innocent: bool = False
    failures: int = 0
    allowed_ms: int = 0

    def failed(self, *, alone: bool, out_of_time: bool) -> None:
        """A group has failed that drained, ``alone`` or beside batches."""
        self.alone, self.innocent = True, False
        if alone:
            self.failures += 1
            if out_of_time:
                self.allowed_ms = min(_LONGEST_DRAIN_MS, max(_LEAST_ALLOWED_MS, 2 * self.allowed_ms))

    def passed(self) -> None:
        """Captured changes were drained alone."""
        self.alone, self.innocent = False, self.alone or self.innocent
        self.failures = self.allowed_ms = 0


@dataclass(frozen=True, slots=True)
class Undertaken:
    """The work that a group sets out to do, kept for the case that it fails. ``batches``: the ids of those that it is
    to decide. ``drains_alone``: it decides none and drains a backlog. ``long``: its one batch has ``alone_ms``.
    ``marked``: they are written down in the database. ``alters``: it decides none and takes a change of tables."""

    batches: Sequence[str] = ()
    drains_alone: bool = False
    long: bool = False
    marked: bool = False
    alters: bool = False


NOTHING = Undertaken()


@dataclass(slots=True)
class Cache:
    """The state that is kept of a database between groups. None of it is trusted without a check: ``synced`` counts
    while the schema version is its own; ``sums``, ``audience_sums`` and ``given`` (what membership queries give
    principals; forgotten at each look) while that version stays and the chain's last link is ``link`` (what adopts rows
    gives a table new sums without a link, and makes a new version); a batch that was ``read_ahead`` while the payload's
    hash is its own.
    ``shape`` is the tables' fingerprint when they were compiled, and ``looked_s`` when that was last looked at
    (``time.monotonic``): after a failure, and every ``_LOOK_S``. ``seal_key`` gives the key of a database's seals where
    the session may not read it.

    For the next group: ``more``: the last one was full. ``last_principal``: the owner of the batch that it took last.
    ``owed``: the principals of whose batches it took some and decided none.
    ``all_may_cause``: any table may have got a trigger that causes other changes since its schema was read.
    ``optimistic``: the last one caused no changes beside what it wrote. ``expects_bad``: it had batches that a
    constraint refused. ``outstanding``: the backlog of captured changes, while there is one. ``undertaken``: what the
    group that runs has set out to do, or the last one had. ``careful``: groups are written down before they are tried
    (``undertaking``), since the process began at ``begun_s``. ``altered``: a change of tables by DDL waits;
    ``watched``: event triggers tell of such changes; without, the tables are looked at as a group begins and ends.
    ``markers``: the numbers of those of the change that waits, while what ends before it is drained;
    ``alter_failures``: groups that have failed since one took such a change; ``gave_way``: those that let others alter
    the tables first."""

    seal_key: Callable[[int], bytes] | None = None
    synced: SyncedDatabase | None = None
    link: bytes = b""
    sums: Sums = field(default_factory=dict)
    audience_sums: AudienceSums = field(default_factory=dict)
    given: dict[str, Given] = field(default_factory=dict)
    read_ahead: dict[tuple[str, bytes], Decoded] = field(default_factory=dict)
    shape: str = ""
    looked_s: float | None = None
    last_principal: str = ""
    owed: Set[str] = frozenset()
    more: bool = False
    all_may_cause: bool = False
    optimistic: bool = True
    expects_bad: bool = False
    outstanding: Outstanding = field(default_factory=Outstanding)
    undertaken: Undertaken = NOTHING
    trouble: DrainTrouble = field(default_factory=DrainTrouble)
    careful: bool = False
    begun_s: float = field(default_factory=time.monotonic)
    altered: bool = False
    watched: bool = False
    markers: Sequence[int] = ()
    alter_failures: int = 0
    gave_way: int = 0

    def is_careful(self) -> bool:
        """Whether groups are written down: for ``CAREFUL_S``, and until no more waits than a group takes."""
        if self.careful and not self.more and time.monotonic() - self.begun_s > CAREFUL_S:
            self.careful = False
        return self.careful

    def read(self, taken: Taken) -> Decoded:
        """The batch, read now or ahead."""
        decoded = self.read_ahead.pop((taken.batch_id, taken.payload_sha256), None)
        if decoded is None:
            assert self.synced is not None
            decoded = self.synced.decoder.decode(taken.batch_id, taken.payload)
        return decoded

    def forget_sums(self) -> None:
        """Have all that counts as of the last group read anew."""
        self.sums.clear()
        self.audience_sums.clear()
        self.given.clear()

    def keep_few(self) -> None:
        """Forget what is kept by audience or principal where that has become much."""
        for kept in (self.audience_sums, self.given):
            if len(kept) > _MOST_KEPT:
                kept.clear()

    def follow(self, synced: SyncedDatabase, shape: str, link: bytes) -> None:
        """Go on with the database as a change of tables has made it: that is committed, and nothing else is kept."""
        self.synced, self.shape, self.link = synced, shape, link
        self.outstanding, self.markers = Outstanding(), ()
        self.altered = self.all_may_cause = False
        self.alter_failures = self.gave_way = 0
        self.looked_s = time.monotonic()
        self.forget_sums()
        self.read_ahead.clear()

    def begin_anew(self) -> None:
        """Have the tables' shape read anew, and read no batch ahead: a batch would be blamed for another one that was
        only read."""
        self.more = False
        self.looked_s = None


def current(conn: Session, cache: Cache, head: Head) -> SyncedDatabase:
    """The database as it is now: its schema may have changed since the last group, and so may its tables, by SQL that
    nothing told of. Where ``cache.altered`` is true afterwards, a change of tables waits to be taken, and this is the
    database before it."""
    synced = cache.synced
    known = synced is not None and synced.database.schema_version == head.schema_version
    cache.altered = head.any_marker
    if synced is not None and known and _looked(cache):
        plan_for(conn, synced.database.id, synced.database.ddl_version)
        if not cache.watched and not cache.altered:
            cache.altered = notice(conn, synced.database)
        return synced
    cache.watched = installed(conn)
    shape = fingerprint(conn, head.name)
    if synced is None or not known or shape != cache.shape or not cache.watched:
        database = synced.database if synced is not None and known else load(conn, cache, head.name)
        if not cache.altered:
            cache.altered = notice(conn, database)
        if synced is None or not known or (shape != cache.shape and not cache.altered):
            synced = cache.synced = compile_now(conn, database, altered=cache.altered)
            cache.all_may_cause = False
            cache.forget_sums()
            cache.read_ahead.clear()
    plan_for(conn, synced.database.id, synced.database.ddl_version)
    cache.shape = shape
    cache.looked_s = time.monotonic()
    # The changes of a principal that retention has forgotten are noted by no group.
    cache.given.clear()
    return synced


def load(conn: Session, cache: Cache, name: str) -> Database:
    """The database as the catalog has it."""
    return load_database(conn, name) if cache.seal_key is None else load_without_key(conn, name, cache.seal_key)


def compile_now(conn: Session, database: Database, *, altered: bool = False) -> SyncedDatabase:
    """The database, compiled as its tables are now. One that has drifted without being altered by DDL that can be
    followed is set aside, and the log says so; while such a change waits (``altered``), nothing is known of drift."""
    differences = [] if altered else drift(conn, database)
    if differences and is_any_waiting(conn, database.id):
        # Altered since the group has looked.
        differences = []
    for one in differences:
        if not one.stops:
            text = "a table is synced, but is not what was registered"
            _log.warning(text, database=database.name, table=one.called, detail=one.text)
    stopped = stopped_tables(differences)
    for text in stopped.values():
        _log.error("a table is not synced", database=database.name, detail=text)
    synced = compile_database(database, with_code=tables_with_code(conn, database.schema_name), stopped=stopped)
    shapes = image_shapes(conn, database.id)
    return replace(synced, older=OlderImages(shapes)) if shapes.older else synced


def _looked(cache: Cache) -> bool:
    return cache.looked_s is not None and time.monotonic() - cache.looked_s < _LOOK_S
