"""JSON Web Tokens: HS256 by a shared secret, ES256 and RS256 by a JSON Web Key Set from a file or a URL.

The algorithm decides which of the two is asked, so that a public key can never be taken for a secret. A token
that was found good is remembered by its hash until it ends, at most ``CAPACITY`` of them, because checking a
signature costs more than the rest of a small call. The key set is read again when it is ``SET_AGE_S`` old, or
when a token names a key that it lacks, at most every ``SET_RETRY_S``; all remembered tokens are then forgotten,
so that a withdrawn key ends its tokens.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections import OrderedDict
from hashlib import sha256
from typing import Any

import jwt
import structlog

from anabranch.clock import Clock
from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.errors import CallError
from anabranch.runtime.principal import Principal, Role
from anabranch.v1 import errors_pb2

CAPACITY = 10_000
SET_AGE_S = 300.0
SET_RETRY_S = 5.0
SET_TIMEOUT_S = 5.0
SET_MAX_BYTES = 1024 * 1024
MAX_TOKEN_BYTES = 16 * 1024
MAX_SUBJECT_BYTES = 1_000
"""The longest subject: it stands in the key of an index."""
_SET_ALGORITHMS = ("ES256", "RS256")
_log = structlog.get_logger()


def _refused(message: str) -> CallError:
    return CallError(errors_pb2.REASON_UNAUTHENTICATED, message)


class TokenVerifier:
    """Turns tokens into principals."""

    def __init__(self, settings: ServiceSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[bytes, Principal] = OrderedDict()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_read: float | None = None
        self._reading = asyncio.Lock()

    async def principal(self, token: str) -> Principal:
        """The principal of a token. Raises CallError: UNAUTHENTICATED, CREDENTIALS_EXPIRED, or UNAVAILABLE for
        no key set."""
        if len(token) > MAX_TOKEN_BYTES:
            raise _refused("the token is too long")
        digest = sha256(token.encode()).digest()
        if self._uses_set() and self._set_age() > SET_AGE_S:
            await self._read_set(SET_AGE_S)
        known = self._known.get(digest)
        if known is None:
            known = await self._verify(token)
            self._known[digest] = known
            if len(self._known) > CAPACITY:
                self._known.popitem(last=False)
        elif known.expires_ms is not None and self._clock.now_ms() >= known.expires_ms:
            del self._known[digest]
            raise CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the token has expired")
        return known

    async def _verify(self, token: str) -> Principal:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as error:
            raise _refused("the credentials are neither an API key nor a token") from error
        algorithm = header.get("alg")
        secret = self._settings.jwt_hs256_secret
        if algorithm == "HS256" and secret is not None:
            return self._principal(self._decode(token, secret.get_secret_value(), algorithm))
        if algorithm in _SET_ALGORITHMS and self._uses_set():
            return self._principal(self._decode(token, await self._key(str(header.get("kid", ""))), algorithm))
        raise _refused("tokens of this kind are not accepted here")

    def _decode(self, token: str, key: str | jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        settings = self._settings
        try:
            # Times are judged below, by the service's own clock.
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=settings.jwt_issuer,
                audience=settings.jwt_audience,
                options={
                    "require": ["exp", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidTokenError as error:
            # PyJWT's messages name a claim or the signature, and no value.
            raise _refused(f"the token is not valid: {error}") from error
        return claims

    def _principal(self, claims: dict[str, Any]) -> Principal:
        settings = self._settings
        subject, database = claims["sub"], claims.get(settings.jwt_database_claim)
        role = claims.get(settings.jwt_role_claim, "device")
        try:
            expires_ms = int(float(claims["exp"]) * 1000) + settings.jwt_leeway_ms
            starts_ms = int(float(claims.get("nbf", 0)) * 1000) - settings.jwt_leeway_ms
        except (TypeError, ValueError, OverflowError) as error:
            raise _refused("the token's exp or nbf is no number") from error
        now_ms = self._clock.now_ms()
        if now_ms >= expires_ms:
            raise CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the token has expired")
        if now_ms < starts_ms:
            raise _refused("the token does not hold yet")
        if not isinstance(subject, str) or not _can_be_kept(subject):
            raise _refused(f"the token's sub is no text of 1 to {MAX_SUBJECT_BYTES} bytes that Postgres can keep")
        if not isinstance(database, str) or not database:
            raise _refused(f"the token lacks the claim {settings.jwt_database_claim}")
        return Principal(subject, _role(role, settings), None if database == "*" else database, expires_ms)

    def _uses_set(self) -> bool:
        return self._settings.jwt_jwks_file is not None or self._settings.jwt_jwks_url is not None

    def _set_age(self) -> float:
        return float("inf") if self._keys_read is None else time.monotonic() - self._keys_read

    async def _key(self, kid: str) -> jwt.PyJWK:
        if kid not in self._keys:
            await self._read_set(SET_RETRY_S)
        if kid not in self._keys:
            raise _refused("the token was signed by a key that is not in the key set")
        return self._keys[kid]

    async def _read_set(self, older_than_s: float) -> None:
        async with self._reading:
            if self._set_age() <= older_than_s:
                return
            try:
                text = await asyncio.to_thread(self._fetch)
                keys = {key.key_id or "": key for key in jwt.PyJWKSet.from_json(text).keys}
            except (OSError, jwt.PyJWTError, json.JSONDecodeError, UnicodeDecodeError) as error:
                _log.error("key set can't be read", detail=error)
                if self._keys_read is None:
                    raise CallError(errors_pb2.REASON_UNAVAILABLE, "the key set can't be read now") from error
                # The old set holds until the next try.
                self._keys_read = time.monotonic()
                return
            self._keys, self._keys_read = keys, time.monotonic()
            self._known.clear()

    def _fetch(self) -> str:
        if self._settings.jwt_jwks_file is not None:
            return self._settings.jwt_jwks_file.read_text(encoding="utf-8")
        url = str(self._settings.jwt_jwks_url)
        if not url.startswith(("https://", "http://")):
            raise OSError("the key set's URL is neither https nor http")
        with urllib.request.urlopen(url, timeout=SET_TIMEOUT_S) as answer:
            body: bytes = answer.read(SET_MAX_BYTES + 1)
        if len(body) > SET_MAX_BYTES:
            raise OSError("the key set is too large")
        return body.decode()


def _can_be_kept(subject: str) -> bool:
    # JSON can spell half a surrogate pair, which is no character.
    size = len(subject.encode(errors="surrogatepass"))
    return 0 < size <= MAX_SUBJECT_BYTES and "\0" not in subject and not re.search("[\ud800-\udfff]", subject)


def _role(value: object, settings: ServiceSettings) -> Role:
    if value == "device":
        return "device"
    if value == "admin":
        return "admin"
    raise _refused(f"the token's {settings.jwt_role_claim} is neither device nor admin")
