"""Pages of the log, of which the next one is asked for while the device applies the one at hand: else server and device
would wait for each other in turn.

State model: *idle*, or *asked* (one page, never more, beyond the one that was given last).

=====  ==========================================  =====  ==============================================
from   what happens                                to     what becomes of the call
=====  ==========================================  =====  ==============================================
idle   a page is wanted                            idle   made and waited for
idle   ``ahead``, unless the page forbids it       asked  begun; its deadline counts from here
asked  the page after is wanted, and the file is   idle   waited for; its failure is raised here, after
       what was reckoned with                             the page before it was applied
asked  it is not: a pull, a rewind, tables         idle   cancelled; the page is asked for anew
       described anew, other audiences, a cleared
       file, another token
asked  ``drop``: the reading ends, however         idle   cancelled
=====  ==========================================  =====  ==============================================

A call ahead presents the position that the page at hand reaches, which the server has just sealed, and acknowledges no
more than the cursor: nothing of the page is in the file yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

from anabranch.client.call_ahead import CallAhead
from anabranch.client.file import state
from anabranch.client.file.state import FileState
from anabranch.client.remote import RemoteDb
from anabranch.v1 import change_pb2, position_pb2

_reckoned_with = attrgetter(
    "db_name", "node_id", "pulls", "snapshot_due", "tables_version", "held_digest", "gains_due", "greatest_epoch"
)
"""The fields of a state that no page changes which allows that the next one is asked for."""


class Ahead:
    """Asks ``remote`` for pages; ``report`` makes a node's report of a state."""

    def __init__(self, remote: RemoteDb, report: Callable[[FileState], position_pb2.NodeState]) -> None:
        self._remote = remote
        self._report = report
        self._asked: tuple[bytes, FileState, CallAhead[change_pb2.GetResponse]] | None = None

    def page(self, current: FileState, token: bytes) -> tuple[change_pb2.GetResponse, FileState]:
        """The page at ``token``, or after the cursor where that is empty, and the state that was presented for it.
        ``current``: the file's state by now. Raises CallFailed."""
        asked, self._asked = self._asked, None
        if asked is not None:
            at, presented, call = asked
            if token == at and _reckoned_with(current) == _reckoned_with(presented):
                return call.answer(), presented
            call.cancel()
        return self._remote.get(self._request(current, token)), current

    def ahead(self, current: FileState, page: change_pb2.Page, token: bytes) -> None:
        """Ask for the page at ``token``, which follows ``page``, unless that one changes what is to be presented for
        it. A failure waits until that page is wanted."""
        if page.HasField("audiences") or any(g.schema_change or g.HasField("audience_change") for g in page.groups):
            return
        presented = replace(current, **state.greatest(current, page.reached))
        self.drop()
        self._asked = token, presented, self._remote.get_ahead(self._request(presented, token))

    def drop(self) -> None:
        """End a call ahead, if there is one."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked[2].cancel()

    def _request(self, presented: FileState, token: bytes) -> change_pb2.GetRequest:
        return change_pb2.GetRequest(
            db_name=presented.db_name,
            node_state=self._report(presented),
            after=presented.cursor_ms,
            page_token=token,
        )
