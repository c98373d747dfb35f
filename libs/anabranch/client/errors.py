"""Errors of a device. The docstring of each class says what the app can do about it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from anabranch.errors import AnabranchError

_SOME = "the device's file"


class ClientError(AnabranchError):
    """Base of all errors that this package itself raises, except ValueError."""


class NotReady(ClientError):
    """The table's first pull is not complete, so that its rows can't be judged yet. Wait for ``start()``."""


class NotChosen(ClientError, ValueError):
    """The table is not among those that this device has chosen, which the message names. Nothing was queued. Choose it
    by ``SyncedDb.choose_tables``, or where the file is opened."""


class RowMissing(ClientError, LookupError):
    """An update or delete names a row that the device does not show. Nothing was queued."""


class RowExists(ClientError):
    """An insert names a row that the device shows. Nothing was queued."""


class BatchState(ClientError):
    """A call that an open batch does not allow: a batch inside a batch, a sync inside a batch, a write while a batch is
    open in another asyncio task of the same thread or in a suspended generator. The message names where it is open.
    Nothing was written."""


class FileFailed(ClientError, sqlite3.OperationalError):
    """SQLite could not read or write the file, and the work under way was undone whole: a batch, a page of the log, a
    part of a pull. Repeat it when the cause, which the message names, is gone."""


class DiskFull(FileFailed):
    """There is no room for the file to grow: a full disk, a quota or a limit on files. The work under way was undone
    whole. Make room, then repeat it."""


class FileDamaged(FileFailed):
    """The device's file has content that can't be: a disk, a copy that was cut short, or another program has changed
    it. ``found`` says what, ``path`` is the file's, None where that is not known. Nothing was changed because of it:
    what can still be read, the queue and the dead letters among it, stays where it is. Keep a copy of the file and of
    all files beside it whose names begin with its own; then put a backup back, or open another path: the tables are
    pulled again, and what was queued and not sent is in the copy alone."""

    def __init__(self, found: str, path: Path | None = None) -> None:
        super().__init__(
            f"{path or _SOME} is damaged: {found}. Keep a copy of it and of the files beside it whose "
            f"names begin with its own: what is queued there and was not sent is nowhere else. Then put a backup back, "
            f"or open another path"
        )
        self.found = found
        self.path = path


class ForeignFile(ClientError):
    """The file is not a device's: another program's database, no database at all, a folder. Neither it nor anything
    beside it was changed. Give the path of the device's file, or one where nothing is yet."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is no device's file: {why}. Nothing was changed; give the path of a device's file, or one where "
            f"there is no file yet"
        )
        self.path = path


class TriggerWrites(ClientError):
    """A trigger of the app would write to a synced table, and a trigger's writes are not sent. Nothing was written;
    while the trigger exists, neither the app nor the sync can change the rows that fire it. Drop it, or let it write to
    a table of the app's own."""


class SyncedElsewhere(ClientError):
    """Another process syncs this file. Its sync carries this process's writes, too."""


class CallFailed(ClientError):
    """A call to the server failed. ``reason`` is a name of ``anabranch.v1.Reason`` without its prefix, or "" where the
    server gave none; ``code`` is the gRPC code's name. ``again`` says whether the same call may succeed later."""

    def __init__(self, code: str, reason: str, message: str, again: bool) -> None:
        super().__init__(f"{reason or code}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.again = again
        self._token: str | None = None
        """The credentials of the call, where it was made with some."""


class TokenFailed(CallFailed):
    """The app's function for the token raised, or gave something that can't be sent: ``__cause__`` is its error, where
    it raised one. ``code`` is UNAVAILABLE for an OSError, because the function needs the network like any call, else
    UNAUTHENTICATED. Nothing was sent; everything is still queued, and the function is asked again later."""

    def __init__(self, error: Exception) -> None:
        code = "UNAVAILABLE" if isinstance(error, OSError) else "UNAUTHENTICATED"
        super().__init__(code, "", f"the app gave no token: {type(error).__name__}: {error}", again=True)


class AppOutdated(CallFailed):
    """The server can't tell the schema version any more that the app was built for (``SyncedDb(schema_version=…)``).
    Nothing is sent or read until the app names a later one: ``version`` is the least that it needs, 0 where that is not
    known. What is queued stays, and so do the rows: show them, and have the app updated."""

    REASON = "APP_OUTDATED"

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__("FAILED_PRECONDITION", self.REASON, message, again=False)
        self.version = version


class WrongPrincipal(CallFailed):
    """The file belongs to another principal. Log in as that one, or call ``clear()``."""

    REASON = "WRONG_PRINCIPAL"

    def __init__(self, message: str) -> None:
        super().__init__("PERMISSION_DENIED", "WRONG_PRINCIPAL", message, again=False)
