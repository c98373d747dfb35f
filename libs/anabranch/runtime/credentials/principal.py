"""The caller of an RPC. The interceptor sets it from an API key or a token, never from a request."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from anabranch.runtime.credentials.claims import NO_CLAIMS, Claims
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

Role = Literal["device", "admin"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. ``subject`` keeps its name when its key or token is replaced."""

    subject: str
    role: Role
    database: str | None
    """The only database that it may use; None for all."""
    expires_ms: int | None
    """When its credentials end, in milliseconds since 1970; None for never."""
    claims: Claims = field(default=NO_CLAIMS, repr=False)
    """The claims of its token, as its issuer signed them; none for an API key."""

    def ended(self, now_ms: int) -> bool:
        """Whether its credentials have expired."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


_current: ContextVar[Principal] = ContextVar("anabranch_principal")


def current_principal() -> Principal:
    """The caller of the RPC under way. Raises LookupError outside of one."""
    return _current.get()


def current_subject() -> str:
    """The caller's name; "" for work that no call asked for."""
    principal = _current.get(None)
    return "" if principal is None else principal.subject


def set_principal(principal: Principal) -> None:
    """Name the caller for the rest of this task."""
    _current.set(principal)


def require_database(name: str) -> Principal:
    """The caller, if it may use the database. Raises CallError PERMISSION_DENIED, whether or not there is one
    of that name."""
    principal = current_principal()
    if not name:
        raise CallError(errors_pb2.REASON_INVALID_REQUEST, "db_name is empty")
    if principal.database is not None and principal.database != name:
        raise CallError(errors_pb2.REASON_PERMISSION_DENIED, f"these credentials do not open database {name!r}")
    return principal


def require_admin() -> Principal:
    """The caller, if it has the role admin. Raises CallError PERMISSION_DENIED."""
    principal = current_principal()
    if principal.role != "admin":
        raise CallError(errors_pb2.REASON_PERMISSION_DENIED, "this call needs the role admin")
    return principal
