"""Whose a file is: nothing of it is shown to, nor queued for, somebody of whom it is not known that it is theirs.

A JWT names its subject, and changes by the hour: the file keeps the subject. An API key names nobody: the file keeps
digests of the last few that the server knows as its principal's, keyed by random bytes of the file's own, and never a
key. A key that is none of those may be the same principal's next key or another person's: the server knows, and is
asked before anything is shown; out of its reach such a key is refused. All this keeps people who share a device apart;
who can read the file itself is not kept from it.
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
from anabranch.client.principal import subject_of

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
    """Those that the file keeps behind their salt, the last one used first."""
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


def _stranger(current: FileState, token: str | None) -> str | None:
    """Why the file may not be the token's, as far as the device knows by itself: "" where it is, None where only the
    server can tell."""
    subject = subject_of(token)
    if subject is not None and current.principal is not None:
        return "" if subject == current.principal else f"the file belongs to {current.principal}, not to {subject}"
    if not token or (current.principal is None and current.credential is None) or current.pulls == 0:
        return ""
    kept = current.credential
    if subject is None and kept is not None and _knows(kept, token):
        return ""
    return None


class Owner:
    """What is known of the one who uses the file now, by the token or by what the server says. ``ask`` makes a call by
    which the server says whether the node is theirs."""

    def __init__(self, file: DeviceFile, token: Callable[[], str | None], ask: Callable[[FileState], object]) -> None:
        self._file = file
        self._token = token
        self._ask = ask
        self._stranger: str | None = None
        """None: not looked at since the file was opened or stopped."""

    def claim(self) -> None:
        """Have the file belong to whom the token names. Raises WrongPrincipal where it is another's, or where only the
        server can tell and does not."""
        token = self._token()
        current = self._file.current()
        self._stranger = _stranger(current, token)
        if self._stranger is None:
            self._stranger = _UNKNOWN
            try:
                self._ask(current)
            except WrongPrincipal as error:
                self._stranger = error.message
                raise
            except CallFailed as error:
                raise WrongPrincipal(f"{_UNKNOWN} ({error})") from error
            self._stranger = ""
        self.require()
        subject = subject_of(token)
        with self._file.transaction() as tx:
            if subject is not None:
                tx.set(principal=subject)
            elif token:
                tx.set(credential=_with(tx.state.credential, token))

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """What the server says of whose file it is decides, where the token itself says nothing."""
        try:
            yield
        except WrongPrincipal as error:
            self._stranger = error.message
            raise
        self._stranger = ""

    def heed(self, state: State) -> None:
        """What the sync in the background was told."""
        if state.kind == "wrong_principal":
            self._stranger = state.detail

    def require(self) -> None:
        """Raises WrongPrincipal where the file is known to be another's, or may be."""
        if self._stranger is None:
            found = _stranger(self._file.current(), self._token())
            self._stranger = _UNKNOWN if found is None else found
        if self._stranger:
            raise WrongPrincipal(self._stranger)

    def leave(self) -> None:
        """Whoever comes next is looked at anew, unless it is known whose the file is not."""
        if not self._stranger:
            self._stranger = None

    def forget(self) -> None:
        """The file is empty, and anybody's."""
        self._stranger = ""
