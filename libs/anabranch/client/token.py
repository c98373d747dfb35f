"""The app's credentials, as they are given for a call: a text, or a function that gives one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from anabranch.client.errors import TokenFailed

Token: TypeAlias = str | Callable[[], str] | None


def given(token: Token) -> str | None:
    """The credentials for a call; None where there are none. A text was judged before.

    Raises:
        TokenFailed: the function raised, or what it gave can't be sent.
    """
    if not callable(token):
        return token
    try:
        found: object = token()
    except Exception as error:
        raise TokenFailed(error) from error
    if found is None:
        return None
    try:
        return sendable(found)
    except ValueError as error:
        raise TokenFailed(error) from None


def sendable(token: object) -> str:
    """Credentials without the line end of the file that they may have come from. Raises ValueError, which does not
    quote them: they are no text, or have a character that no header takes; gRPC's own error would quote them."""
    if not isinstance(token, str):
        raise ValueError(f"the token is {type(token).__name__}, not text")
    stripped = token.strip()
    if not (stripped.isascii() and stripped.isprintable()):
        raise ValueError("the token has a character that can't be sent: a line end, or one that is not ASCII")
    return stripped
