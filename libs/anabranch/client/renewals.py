"""The bound on renewals: what a token's end has ended goes on at once, as long as that leads somewhere."""

from __future__ import annotations

from anabranch.client.errors import CallFailed
from anabranch.client.remote import RemoteDb

_MOST = 2
"""Renewals in a row without an answer in between. A token may have little time left when a call begins; an app that
gives one ended token after another fails like any other, and backoff is for that."""


class Renewals:
    """Judges the failures of one piece of work."""

    def __init__(self, remote: RemoteDb) -> None:
        self._remote = remote
        self._left = _MOST

    def answered(self) -> None:
        """Note that an answer came."""
        self._left = _MOST

    def allow(self, error: CallFailed) -> bool:
        """Whether to call again at once: the failure was a token's end, and the app has another one. Raises
        TokenFailed, WrongPrincipal."""
        if not self._left or not self._remote.renewed(error):
            return False
        self._left -= 1
        return True
