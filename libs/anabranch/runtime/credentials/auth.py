"""Identifies callers by ``authorization: Bearer <API key or JSON Web Token>``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from anabranch.clock import Clock
from anabranch.runtime.credentials.keys import KeyDirectory
from anabranch.runtime.credentials.principal import Principal
from anabranch.runtime.credentials.tokens import TokenVerifier
from anabranch.runtime.errors import CallError
from anabranch.store.nodes import api_keys
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import errors_pb2


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal, and the API key that proved it, or the key of the key set that its token was signed with."""

    principal: Principal
    key_id: str | None
    signer: bytes | None = None


class Authenticator:
    """Checks credentials, when a call comes and again while a stream is open."""

    def __init__(self, keys: KeyDirectory, tokens: TokenVerifier, clock: Clock) -> None:
        self._keys = keys
        self._tokens = tokens
        self._clock = clock
        self.on_identified: Callable[[], None] = lambda: None
        """Called when credentials were found good."""

    def knows_keys(self) -> bool:
        """Whether calls may be judged by keys that were read before."""
        return not self._keys.is_empty()

    async def identify(self, authorization: str | bytes | None) -> Identity:
        """Return the owner of these credentials. Raises CallError: UNAUTHENTICATED, CREDENTIALS_EXPIRED, UNAVAILABLE,
        OVERLOADED."""
        identity = await self._identify(authorization)
        self.on_identified()
        return identity

    async def _identify(self, authorization: str | bytes | None) -> Identity:
        if not isinstance(authorization, str) or authorization[:7].lower() != "bearer ":
            raise CallError(
                errors_pb2.REASON_UNAUTHENTICATED, "no credentials: send authorization: Bearer <key or token>"
            )
        credentials = authorization[7:].strip()
        parts = api_keys.split_key(credentials)
        if parts is None:
            proof = await self._tokens.prove(credentials)
            return Identity(proof.principal, None, proof.signer)
        key_id, secret = parts
        key = await self._keys.find(key_id)
        # An unknown key and a wrong secret get the same answer, so that a caller can't find out which ids exist.
        if key is None or not api_keys.proves(key, secret):
            raise CallError(errors_pb2.REASON_UNAUTHENTICATED, "the API key is not valid")
        if key.ended(self._clock.now_ms()):
            raise CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the API key has expired or was revoked")
        return Identity(Principal(key.subject, key.role, key.database, key.expires_ms), key_id)

    async def ended(self, identities: Iterable[Identity], conn: AsyncSession | None) -> set[Identity]:
        """Return the identities whose credentials are no longer good. Keys are read again, in one statement of ``conn``
        or, without one, of the pool, however many of their rows are gone.

        Raises:
            psycopg.Error, TimeoutError: the database does not answer; no identity is judged then.
        """
        asked = set(identities)
        keys = await self._keys.confirm((one.key_id for one in asked if one.key_id is not None), conn)
        now_ms = self._clock.now_ms()
        ended = set()
        for identity in asked:
            if identity.principal.ended(now_ms) or (
                identity.signer is not None and not self._tokens.proves(identity.signer)
            ):
                ended.add(identity)
            elif identity.key_id is not None:
                key = keys.get(identity.key_id)
                if key is None or key.ended(now_ms):
                    ended.add(identity)
        return ended
