"""The last look before a group is committed: whether something was captured meanwhile that it does not know of.

As a rule the look is a condition in Postgres, with COMMIT behind it in the send that brings the records: where it finds
something it fails, and Postgres skips the COMMIT. Where the group has more to do before it may be committed, the look
is a question, and its answer is waited for.

The condition fails by a cast of a sentence, since Postgres's log has the error: whoever reads it there learns what it
means. By which cast says what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import psycopg

from anabranch.store.capture import captured
from anabranch.store.capture.captured import CHANGE, OWN, UNKNOWN_MARKER
from anabranch.store.session.binary import Connection, Cursor, commit_behind, commits_behind, run, was_refused
from anabranch.values.postgres_binary import int8, int8_array

_OWN_FOUND = "Anabranch tries a group again: its statements have caused changes that it did not expect"
_OTHERS_FOUND = "Anabranch tries a group again: rows or tables were changed while it ran"
# The sentences are those of subqueries, so that no cast is tried when the statement is planned.
_REQUIRE = f"""
select case when {OWN} is not null then (select '{_OWN_FOUND}'::text)::int
            when {{others}} then (select '{_OTHERS_FOUND}'::text)::date - date '2000-01-01' else 0 end
"""
_MARKER = f"{UNKNOWN_MARKER.format(known='$3::int8[]')} is not null"
_ANY = f"(select true from anabranch.captured where database_id = $1::int8::int and {CHANGE} limit 1) is not null"
REQUIRE_NO_OWN_OR_MARKER = _REQUIRE.format(others=_MARKER).encode()
REQUIRE_NONE_OR_MARKER = _REQUIRE.format(others=f"{_ANY} or {_MARKER}").encode()


class LastLook:
    """A block in which records are sent, with ``send`` at its end. ``up_to``: the number of the last captured change
    that the group has drained, None where it has drained none. Then any change counts that is there, since it may be
    one that stands before the group's; else only those that the group itself has caused; and markers of tables that
    were altered since, all but ``markers``.

    ``behind``: the group may be committed with its records, behind these steps; None where it may not. ``commits``: it
    is, unless something stands between.
    """

    def __init__(
        self,
        conn: Connection,
        database_id: int,
        up_to: int | None,
        markers: Sequence[int],
        behind: Sequence[Callable[[], None]] | None,
    ) -> None:
        self._conn = conn
        self._database_id = database_id
        self._up_to = up_to
        self._markers = markers
        self._behind = behind if commits_behind(conn) else None
        self._asked: Cursor | None = None
        self._caused: bool | None = None
        self.commits = self._behind is not None

    def send(self) -> None:
        """Look, when all else is sent. Nothing may be put behind it."""
        if self._behind is None:
            self._asked = captured.ask_between(self._conn, self._database_id, self._up_to, self._markers)
            return
        for step in self._behind:
            step()
        statement = REQUIRE_NONE_OR_MARKER if self._up_to is None else REQUIRE_NO_OWN_OR_MARKER
        parameters = [int8(self._database_id), int8(self._up_to or 0), int8_array(self._markers)]
        self._asked = run(self._conn, statement, parameters)
        commit_behind(self._conn)

    def found(self) -> bool | None:
        """None where nothing stands between; else whether the group's own statements have caused it. To be asked once
        the block has ended. Raises psycopg.Error."""
        if self.commits or self._asked is None:
            return self._caused
        if not self._asked.fetchone():
            return None
        return captured.ask_for_own(self._conn, self._database_id, self._up_to or 0).fetchone() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Take the failure of the condition for its answer; any other error goes on."""
        if self.commits and self._asked is not None and was_refused(self._asked):
            if isinstance(error, psycopg.errors.InvalidTextRepresentation):
                self._caused = True
            elif isinstance(error, psycopg.errors.InvalidDatetimeFormat):
                self._caused = False
        return self._caused is not None
