"""Whose a file is: nothing of it is shown to, nor queued for, somebody of whom it is known that it is another's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.client.errors import WrongPrincipal
from anabranch.client.events import State
from anabranch.client.file import DeviceFile
from anabranch.client.principal import subject_of


class Owner:
    """What is known of the one who uses the file now, by the token or by what the server says."""

    def __init__(self, file: DeviceFile) -> None:
        self._file = file
        self._stranger = ""

    def claim(self, token: str | None) -> None:
        """Have the file belong to whom the token names, if it belongs to nobody. Raises WrongPrincipal where it is
        another's."""
        subject = subject_of(token)
        with self._file.transaction() as tx:
            if subject is not None and tx.state.principal not in (None, subject):
                self._stranger = f"the file belongs to {tx.state.principal}, not to {subject}"
                raise WrongPrincipal(self._stranger)
            if subject is not None:
                tx.set(principal=subject)
        self._stranger = ""

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
        """Raises WrongPrincipal where the file is known to be another's."""
        if self._stranger:
            raise WrongPrincipal(self._stranger)

    def forget(self) -> None:
        """The file is empty, and anybody's."""
        self._stranger = ""
