"""The events that an app gets, and their delivery: in commit order, after the commit, one callback at a time."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from anabranch.client.logs import get_logger

log = get_logger(__name__)

_LIMIT = 100_000
_PATIENCE_S = 30.0
_SHORT_S = 5.0

T = TypeVar("T")
Origin: TypeAlias = Literal["local", "remote", "snapshot", "rejected"]
Kind: TypeAlias = Literal["insert", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """A shown row has changed. ``key`` holds the key's values in the key's order, ``columns`` names the changed
    columns, ``row`` is the row as a read gives it (None after a delete). ``origin`` says where it came from: a write on
    this file, the log, a pull, or a rejected batch that is no longer shown."""

    table: str
    type: Kind
    key: tuple[Any, ...]
    columns: tuple[str, ...]
    row: Mapping[str, Any] | None
    origin: Origin


ConflictOutcome: TypeAlias = Literal["lost", "overwrote", "merged", "rejected"]


@dataclass(frozen=True, slots=True)
class ConflictEvent:
    """An own batch met others' changes. ``outcome``:

    * "lost": the own value lost, ``losing_value`` is it;
    * "overwrote": the own value stands, ``losing_value`` is the other's;
    * "merged": another node changed other columns of the row, and both stand; ``column`` is empty;
    * "rejected": the batch ``losing_batch_id`` went to the dead queue for ``reason``; ``server_row`` is the row as the
      server has it, where it has one. ``table``, ``key`` and ``column`` are empty where the batch was refused whole.

    Values have the form in which a read gives them, or that in which they were sent where the column is gone. Such a
    column has its last identity for a name, with `` (gone)`` behind it where another column is called so.
    ``value_known`` is False where the losing value did not come along; where one lost, ``SyncedDb.conflicts`` has it.
    ``cause`` is "COLUMN_DROPPED" where the own value lost because its column was dropped, else empty. ``of``: the
    identities of table and column, by which a value is put back."""

    table: str
    key: tuple[Any, ...]
    column: str
    losing_value: Any
    losing_batch_id: str
    winning_batch_id: str
    outcome: ConflictOutcome
    value_known: bool = True
    reason: str = ""
    server_row: Mapping[str, Any] | None = None
    cause: str = ""
    of: tuple[str, str] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class State:
    """A state or an event of the sync itself. ``kind`` is one of ``STATE_KINDS``; ``position`` is in milliseconds."""

    kind: str
    detail: str = ""
    table: str | None = None
    position: int | None = None


STATE_KINDS = {
    "online": "calls succeed again",
    "offline": "calls fail; writes wait in the queue",
    "unauthenticated": "the server does not take the credentials, or the app's function for the token raised; detail "
    "holds the reason; writes wait in the queue",
    "disk_full": "the file has no room to grow; detail names it; what is queued stays, and the sync tries again",
    "pulling": "a snapshot is being taken",
    "pulled": "a snapshot is complete",
    "dead_letter": "a batch went to the dead queue; detail holds its id and reason",
    "sums_disagree": "the rows of a table are not the server's at that position",
    "sums_agree": "a table that disagreed agrees again",
    "given_up": "tables, or rows of audiences, that are no longer chosen were removed from the file; detail names them",
    "not_synced": "the server has no synced table of a chosen name; it is pulled once it is registered",
    "set_aside": "a table could not take a change and is asked for again",
    "not_renamed": "a table keeps its name in the file, since something else there has the new one; detail says which",
    "not_kept": "indexes and triggers of the app's own were dropped, since they name what the server has taken away",
    "app_outdated": "the server can't tell the app's schema version any more; syncing has stopped; detail says which "
    "version the app needs",
    "wrong_principal": "the file belongs to another principal; syncing has stopped",
    "rewound": "the server was restored to a time before what this file has seen; position is what both still have",
    "node_forked": "this file was copied or restored; it goes on under a new node id",
    "leader": "this process syncs the file",
    "follower": "another process syncs the file",
    "clock_skew": "the device's clock is not the server's, or is again; detail says by how much",
    "changed_elsewhere": "another process wrote to the file",
    "error": "a call was refused; detail holds the reason",
}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A batch that ended in the dead queue. ``mutations`` holds its mutations: (type, table, rows) with rows as dicts.
    ``table``, ``key`` and ``server_row`` (the server's row when it refused) belong to the refused mutation where the
    server named one, else to the batch's first row; ``server_row_now`` is that row as the log has brought it since.
    A column that is gone has its identity for a name, with `` (gone)`` behind it where another column is called so; a
    table that the file lacks has its own, which another table may have for its name.
    ``still_shown`` is True if the batch's changes could not be removed from the shown rows. Times are milliseconds
    since 1970."""

    id: str
    reason: str
    message: str
    table: str
    key: tuple[Any, ...]
    server_row: Mapping[str, Any] | None
    server_row_now: Mapping[str, Any] | None
    constraint: str
    sqlstate: str
    mutations: tuple[tuple[Kind, str, tuple[Mapping[str, Any], ...]], ...]
    died_ms: int
    first_shown_ms: int
    still_shown: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of the file become others, because the server's did. ``version`` is the database's schema version from
    then on, ``tables`` are the names of those that change, come or go. ``phase``: "before" nothing is done yet; it is
    told again where the change then could not be made, as on a full disk. "after": it is committed."""

    version: int
    tables: tuple[str, ...]
    phase: Literal["before", "after"]


Event: TypeAlias = Change | ConflictEvent | State | Schema


@dataclass
class Listeners:
    """Callbacks and the events that wait for them.

    State model: events are put in commit order, under the file's write lock. The thread that committed then tries for
    ``_turn`` and delivers the queued events; a thread that does not get ``_turn`` leaves its events to the one that has
    it, which looks again after letting go, so that none is left. So callbacks never overlap, never run under a lock
    that a callback may want, and may write themselves. If a callback raises, the error is logged and the other
    callbacks are still called. More than ``_LIMIT`` waiting events hold their writers back, for ``_PATIENCE_S`` at
    most: a slow callback slows the sync down, one that hangs can't stop it.
    """

    change: list[Callable[[Change], None]] = field(default_factory=list)
    conflict: list[Callable[[ConflictEvent], None]] = field(default_factory=list)
    state: list[Callable[[State], None]] = field(default_factory=list)
    schema: list[Callable[[Schema], None]] = field(default_factory=list)
    _waiting: deque[Event] = field(default_factory=deque)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _fewer: threading.Condition = field(default_factory=threading.Condition)
    _delivering: int | None = None

    def listen(self, callbacks: list[Callable[[T], None]], callback: Callable[[T], None]) -> Callable[[], None]:
        """Have ``callback`` called; return the function that ends this. That may be called from anywhere, the callback
        included, and also twice. Later events are not delivered to the callback; a call under way in another thread
        goes on to its end."""
        # One object a registration: the same callback may be registered twice.
        registered: Callable[[T], None] = partial(callback)
        callbacks.append(registered)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                callbacks.remove(registered)

        return unsubscribe

    def put(self, events: list[Event]) -> None:
        """Queue ``events`` for ``deliver``."""
        self._waiting.extend(events)

    def deliver(self) -> None:
        """Call back for every queued event, unless another thread, or this one, is already delivering."""
        while self._waiting and self._turn.acquire(blocking=False):
            self._delivering = threading.get_ident()
            try:
                while self._waiting:
                    self._call(self._waiting.popleft())
                    if len(self._waiting) == _LIMIT:
                        with self._fewer:
                            self._fewer.notify_all()
            finally:
                self._delivering = None
                self._turn.release()
        if len(self._waiting) > _LIMIT and self._delivering != threading.get_ident():
            with self._fewer:
                self._fewer.wait_for(lambda: len(self._waiting) <= _LIMIT, _PATIENCE_S)

    def tell(self, event: Event) -> None:
        """Call back for an event before going on: callbacks under way in another thread are waited for, but not for
        ever, since they may wait for the caller; then the event is theirs to deliver."""
        if self._delivering == threading.get_ident():
            self._call(event)
            return
        self._waiting.append(event)
        if not self._turn.acquire(timeout=_SHORT_S):
            return
        self._turn.release()
        self.deliver()

    def publish(self, event: Event) -> None:
        """Put one event and deliver."""
        self._waiting.append(event)
        self.deliver()

    def _call(self, event: Event) -> None:
        registered: list[Callable[[Any], None]]
        if isinstance(event, Change):
            registered = self.change
        elif isinstance(event, ConflictEvent):
            registered = self.conflict
        elif isinstance(event, Schema):
            registered = self.schema
        else:
            registered = self.state
        callbacks = tuple(registered)
        for callback in callbacks:
            if callback not in registered:
                continue  # One before it in the row has ended it.
            try:
                callback(event)
            except Exception:
                log.exception("callback_failed", callback=repr(callback), event_kind=type(event).__name__)
