"""A call whose answer is waited for later, so that the device works meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from google.protobuf.message import Message

from anabranch.client.errors import ClientError

M = TypeVar("M", bound=Message)


class CallAhead(Generic[M]):
    """A call that was begun. Its deadline counts from then on, and it ends by its answer, by ``cancel``, or where the
    remote is closed."""

    def __init__(self, answer: Callable[[], M], cancel: Callable[[], object] = lambda: None) -> None:
        self._answer = answer
        self._cancel = cancel

    @classmethod
    def failed(cls, error: ClientError) -> CallAhead[M]:
        """A call that could not be begun: its answer is the error. What was received before it can still be used."""

        def raised() -> M:
            raise error

        return cls(raised)

    def answer(self) -> M:
        """Wait for the answer. Raises CallFailed, and what a call raises that is waited for at once."""
        return self._answer()

    def cancel(self) -> None:
        """End the call: its answer is not wanted any more."""
        self._cancel()
