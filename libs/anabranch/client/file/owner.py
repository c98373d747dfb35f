"""The owner of a file: rows are shown to a user, and queued for one, only if the file is known to be theirs.

A JWT names its subject, and changes by the hour: the file keeps the subject. An API key names no subject: the file
keeps digests of the last few that the server knows as its principal's, keyed by random bytes of the file's own, and
never a key. Any other key may be the same principal's next key or another person's: the server knows, and is asked
before anything is shown; without a connection such a key is refused. All this separates people who share a device; it
does not protect the file from a person who can read it directly.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabranch.client.errors import CallFailed, WrongPrincipal
from anabranch.client.events import State
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.state import FileState
from anabranch.client.principal import refusal, subject_of

_SALT_BYTES, _DIGEST_BYTES = 16, 32
_KEYS_KEPT = 4
"""Two processes of one app may have keys of their own, and each is followed by its next one."""
_UNKNOWN = (
    "the file was last used with other credentials, and the server, which knows whose these are, has not been asked: "
    "start() asks it, when it is in reach"
)


def _digest(token: str, salt: bytes) -> bytes:
    return hashlib.blake2b(token.encode(), key=salt, digest_size=_DIGEST_BYTES).digest()


def _digests(kept: bytes) -> list[bytes]:
    """The digests that the file keeps behind their salt, the last one used first."""
    return [kept[at : at + _DIGEST_BYTES] for at in range(_SALT_BYTES, len(kept), _DIGEST_BYTES)]


def _knows(kept: bytes, token: str) -> bool:
    digest = _digest(token, kept[:_SALT_BYTES])
    return any(hmac.compare_digest(one, digest) for one in _digests(kept))


def _with(kept: bytes | None, token: str) -> bytes:
    """The file's digests with the token's in front."""
    salt = secrets.token_bytes(_SALT_BYTES) if kept is None else kept[:_SALT_BYTES]
    digest = _digest(token, salt)
    others = [one for one in _digests(kept or b"") if one != digest]
    return b"".join([salt, digest, *others[: _KEYS_KEPT - 1]])


def _why_not_owner(current: FileState, token: str | None) -> str | None:
    """The reason why the file does not belong to the token's principal, as far as the device knows by itself: "" where
    it does, None where only the server knows."""
    why = refusal(current.principal, token)
    if why is not None:
        return why
    if not token or (current.principal is None and current.credential is None) or current.pulls == 0:
        return ""
    kept = current.credential
    if subject_of(token) is None and kept is not None and _knows(kept, token):
        return ""
    return None


class Owner:
    """The knowledge about the file's present user, from the token or from the server's answers. ``ask`` makes a call by
    which the server says whether the node belongs to the user."""

    def __init__(self, file: DeviceFile, token: Callable[[], str | None], ask: Callable[[FileState], object]) -> None:
        self._file = file
        self._token = token
        self._ask = ask
        self._refusal: str | None = None
        """None: not checked since the file was opened or stopped."""

    def claim(self) -> None:
        """Make the principal that the token names the file's owner. Raises WrongPrincipal where the file is another's,
        or where only the server knows and can't be asked."""
        token = self._token()
        current = self._file.current()
        self._refusal = _why_not_owner(current, token)
        if self._refusal is None:
            self._refusal = _UNKNOWN
            try:
                self._ask(current)
            except WrongPrincipal as error:
                self._refusal = error.message
                raise
            except CallFailed as error:
                raise WrongPrincipal(f"{_UNKNOWN} ({error})") from error
            self._refusal = ""
        self.require()
        subject = subject_of(token)
        with self._file.transaction() as tx:
            if subject is not None:
                tx.set(principal=subject)
            elif token:
                tx.set(credential=_with(tx.state.credential, token))

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Let the server's answer to the block's call decide whose the file is, where the token does not say it."""
        try:
            yield
        except WrongPrincipal as error:
            self._refusal = error.message
            raise
        self._refusal = ""

    def heed(self, state: State) -> None:
        """Take the background sync's state into account."""
        if state.kind == "wrong_principal":
            self._refusal = state.detail

    def require(self) -> None:
        """Raise WrongPrincipal if the file is known to be another's, or may be."""
        if self._refusal is None:
            found = _why_not_owner(self._file.current(), self._token())
            self._refusal = _UNKNOWN if found is None else found
        if self._refusal:
            raise WrongPrincipal(self._refusal)

    def leave(self) -> None:
        """Have the next user checked anew, unless the present one is known not to own the file."""
        if not self._refusal:
            self._refusal = None

    def forget(self) -> None:
        """Note that the file is empty, and may belong to any principal."""
        self._refusal = ""
