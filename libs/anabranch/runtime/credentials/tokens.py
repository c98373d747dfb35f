"""JSON Web Tokens: HS256 by a shared secret, ES256 and RS256 by a JSON Web Key Set from a file or a URL.

The algorithm decides which of the two is asked, so that a public key can never be taken for a secret. A token
that was found good is remembered by its hash until it ends, at most ``CAPACITY`` of them and ``KNOWN_MAX_BYTES``,
because checking a signature costs more than the rest of a small call. When another key set was taken (``key_set``),
all remembered tokens are forgotten, so that a withdrawn key ends its tokens.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jwt

from anabranch.clock import Clock
from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.credentials.claims import ClaimsError, frozen
from anabranch.runtime.credentials.key_set import KeySet
from anabranch.runtime.credentials.principal import Principal, Role
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

CAPACITY = 10_000
KNOWN_MAX_BYTES = 8 * 1024 * 1024
"""Of the tokens remembered; what is kept of their claims takes a multiple of it."""
MAX_TOKEN_BYTES = 16 * 1024
MAX_SUBJECT_BYTES = 1_000
"""The longest subject: it stands in the key of an index."""
_SET_ALGORITHMS = ("ES256", "RS256")


def _refused(message: str) -> CallError:
    return CallError(errors_pb2.REASON_UNAUTHENTICATED, message)


@dataclass(frozen=True, slots=True)
class TokenProof:
    """The proof in a token: its principal; and the key of the set that proved it, None for the shared secret."""

    principal: Principal
    signer: bytes | None
    size: int


class TokenVerifier:
    """Turns tokens into principals."""

    def __init__(self, settings: ServiceSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[bytes, TokenProof] = OrderedDict()
        self._known_bytes = 0
        file, url = settings.jwt_jwks_file, settings.jwt_jwks_url
        self.key_set: KeySet | None = None
        """The issuer's keys, which its owner has read again by ``run``."""
        if file is not None or url is not None:
            self.key_set = KeySet(file, url, settings.jwt_jwks_reload_ms / 1000, self._forget)

    async def prove(self, token: str) -> TokenProof:
        """The principal of a token. Raises CallError: UNAUTHENTICATED, CREDENTIALS_EXPIRED, or UNAVAILABLE and
        OVERLOADED for no key set."""
        if len(token) > MAX_TOKEN_BYTES:
            raise _refused(f"the token has more than {MAX_TOKEN_BYTES} bytes")
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        known = self._known.get(digest)
        if known is None:
            known = await self._verify(token)
            self._remember(digest, known)
        elif known.principal.ended(self._clock.now_ms()):
            del self._known[digest]
            self._known_bytes -= known.size
            raise CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the token has expired")
        return known

    def _remember(self, digest: bytes, proof: TokenProof) -> None:
        # Two calls may have verified it at a time.
        self._known_bytes += proof.size - (self._known[digest].size if digest in self._known else 0)
        self._known[digest] = proof
        while len(self._known) > CAPACITY or self._known_bytes > KNOWN_MAX_BYTES:
            self._known_bytes -= self._known.popitem(last=False)[1].size

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = 0

    def proves(self, signer: bytes) -> bool:
        """Whether the key of the set that proved a token would still prove it."""
        return self.key_set is None or self.key_set.proves(signer)

    async def _verify(self, token: str) -> TokenProof:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, UnicodeEncodeError) as error:
            raise _refused("the credentials are neither an API key nor a token") from error
        algorithm = header.get("alg")
        secret = self._settings.jwt_hs256_secret
        if algorithm == "HS256" and secret is not None:
            claims = self._decode(token, secret.get_secret_value(), algorithm)
            return TokenProof(self._principal(claims), None, len(token))
        if algorithm in _SET_ALGORITHMS and self.key_set is not None:
            signing = await self.key_set.key(str(header.get("kid", "")), algorithm)
            return TokenProof(self._principal(self._decode(token, signing.key, algorithm)), signing.signer, len(token))
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
        try:
            carried = frozen(claims)
        except ClaimsError as error:
            raise _refused(f"the token is not valid: {error}") from error
        return Principal(subject, _role(role, settings), None if database == "*" else database, expires_ms, carried)


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
