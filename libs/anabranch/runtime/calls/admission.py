"""Judges a call by its metadata, before a byte of its message is taken.

gRPC hands over a call when its metadata has come, and asks for the message later. What a caller without credentials
sends stays in gRPC's flow-control window, and goes with the call when it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar

from anabranch.runtime import metrics, telemetry
from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.credentials.auth import Authenticator, Identity
from anabranch.runtime.credentials.principal import set_principal
from anabranch.runtime.errors import CallError, reason_name
from anabranch.v1 import errors_pb2

MOST_JUDGED = 2_000
"""Calls whose credentials are being looked up. Others are told to come again: a look-up takes milliseconds."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII).fullmatch
_admitted: ContextVar[Identity] = ContextVar("anabranch_admitted")


def admitted() -> Identity:
    """The identity that makes the call under way. Raises LookupError for a call that needs no credentials."""
    return _admitted.get()


def take_trace(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Remember the traceparent that a call came with, if it has the form of one."""
    found = None
    for name, value in metadata:
        if name == "traceparent" and isinstance(value, str) and _TRACEPARENT(value):
            found = value
    telemetry.accept_traceparent(found)


class CallAdmission:
    """Admits callers with credentials, each at its rate."""

    def __init__(self, authenticator: Authenticator, rate: RateLimit) -> None:
        self._authenticator = authenticator
        self._rate = rate
        self._judged = 0

    async def judge(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Admit the call of this task, whose principal is known from then on. Raises CallError, as
        ``Authenticator.identify`` and ``RateLimit.take``."""
        if self._judged >= MOST_JUDGED:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                "the credentials of too many calls are being looked up: call again in a second",
                retry_after_ms="1000",
            )
        given = [value for name, value in metadata if name == "authorization"]
        self._judged += 1
        try:
            if len(given) > 1:
                # Which of them a proxy in between has judged is not known.
                raise CallError(errors_pb2.REASON_UNAUTHENTICATED, "credentials are given twice: send them once")
            identity = await self._authenticator.identify(given[0] if given else None)
        except CallError as failure:
            metrics.count("anabranch_refused_credentials", reason=reason_name(failure.reason))
            raise
        finally:
            self._judged -= 1
        set_principal(identity.principal)
        self._rate.take(identity.principal.subject)
        _admitted.set(identity)
