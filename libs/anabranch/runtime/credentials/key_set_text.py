"""The text of a JSON Web Key Set, fetched and judged: which of its keys may prove a token, and why others may not.

The set decides nothing about algorithms: a key proves tokens of the one algorithm that its kind has here (ES256 for
curve P-256, RS256 for RSA), and keys of all other kinds are left out. So a shared secret that stands in a set, where
everybody reads it, proves nothing.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import jwt

from anabranch.errors import ServerError

SET_TIMEOUT_S = 5.0
"""How long the source may take for the whole set."""
SET_MAX_BYTES = 1024 * 1024
SET_MAX_KEYS = 200
LEAST_RSA_BITS, MOST_RSA_BITS = 2_048, 8_192
_MOST_EXPONENT_CHARACTERS = 12
_CHUNK = 64 * 1024
Why = Literal["unreachable", "slow", "too_large", "malformed"]


class KeySetError(ServerError):
    """The set can't be had. ``why`` is its name in the metric and the log."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that may prove tokens. ``signer`` is its fingerprint: another key under the same id has another one."""

    key: jwt.PyJWK
    signer: bytes


Keys = Mapping[tuple[str, str], SigningKey]
"""By id ("" where a key has none) and algorithm."""


@dataclass(frozen=True, slots=True)
class KeySetText:
    """A set that was read: its keys, and how many others were left out, by the reason."""

    keys: Keys
    left_out: Mapping[str, int]


def fetch(file: Path | None, url: str | None) -> bytes:
    """The set's text. Takes ``SET_TIMEOUT_S``, and longer where the source sends byte after byte. Raises
    KeySetError."""
    try:
        if file is not None:
            with file.open("rb") as opened:
                body = opened.read(SET_MAX_BYTES + 1)
        else:
            body = _download(str(url))
    except TimeoutError:
        raise KeySetError("slow", f"the source did not send the set within {SET_TIMEOUT_S:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Without the error's text: it may quote the address, in which a password may stand.
        raise KeySetError("unreachable", f"the source does not give the set: {type(error).__name__}") from None
    if len(body) > SET_MAX_BYTES:
        raise KeySetError("too_large", f"the set has more than {SET_MAX_BYTES} bytes")
    return body


def _download(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise ValueError
    until_s = time.monotonic() + SET_TIMEOUT_S
    parts, size = [], 0
    with urllib.request.urlopen(url, timeout=SET_TIMEOUT_S) as answer:
        while size <= SET_MAX_BYTES and (part := answer.read1(_CHUNK)):
            parts.append(part)
            size += len(part)
            if time.monotonic() > until_s:
                raise TimeoutError
    return b"".join(parts)


def read(text: bytes) -> KeySetText:
    """Judge a set. Raises KeySetError: it is no set; a key that is no good is only left out."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise KeySetError("malformed", "the set is no JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise KeySetError("malformed", "the set has no list of keys")
    if len(entries) > SET_MAX_KEYS:
        raise KeySetError("too_large", f"the set has more than {SET_MAX_KEYS} keys")
    keys: dict[tuple[str, str], SigningKey] = {}
    left_out: Counter[str] = Counter()
    for entry in entries:
        why = _objection(entry)
        if why is None:
            name, key = entry.get("kid", ""), _key(entry)
            if key is None:
                why = "damaged"
            elif (name, key.key.algorithm_name) in keys:
                why = "id given twice"
            else:
                keys[name, key.key.algorithm_name] = key
        if why is not None:
            left_out[why] += 1
    return KeySetText(keys, left_out)


def _objection(entry: Any) -> str | None:
    """Why an entry of the set can't prove tokens, before its numbers are looked at; None where nothing is known."""
    if not isinstance(entry, dict):
        return "no object"
    if not isinstance(entry.get("kid", ""), str):
        return "id is no text"
    algorithm = _algorithm(entry)
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return "another kind"
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return "not for signatures"
    if "d" in entry:
        return "private"
    if algorithm == "RS256":
        number, exponent = entry.get("n"), entry.get("e")
        if not isinstance(number, str) or not isinstance(exponent, str):
            return "damaged"
        # Six bits a character, before anything is computed with it.
        if len(number) * 6 > MOST_RSA_BITS + 64 or len(exponent) > _MOST_EXPONENT_CHARACTERS:
            return "too long"
    return None


def _algorithm(entry: Mapping[str, Any]) -> str | None:
    if entry.get("kty") == "EC" and entry.get("crv") == "P-256":
        return "ES256"
    return "RS256" if entry.get("kty") == "RSA" else None


def _key(entry: dict[str, Any]) -> SigningKey | None:
    """Return the entry's key; None where its numbers make none that is strong enough."""
    algorithm = _algorithm(entry)
    try:
        key = jwt.PyJWK(entry, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if algorithm == "RS256" and not LEAST_RSA_BITS <= key.key.key_size <= MOST_RSA_BITS:
        return None
    material = {name: entry.get(name) for name in ("kty", "crv", "x", "y", "n", "e")}
    return SigningKey(key, sha256(json.dumps(material, sort_keys=True).encode()).digest())
