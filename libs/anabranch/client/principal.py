"""The principal of a token, as far as the device can tell by itself."""

from __future__ import annotations

import base64
import binascii
import json


def subject_of(token: str | None) -> str | None:
    """The subject that a JWT names, unverified (the server verifies); None for an API key, which names none. It only
    serves to notice another login before a call is made; the server's answer decides."""
    parts = (token or "").split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject if isinstance(subject, str) else None
