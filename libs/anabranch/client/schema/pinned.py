"""The schema version that an app was built for, where it names one.

The file keeps it. Schema changes up to that version are followed as they are; later ones leave the names that the app
knows, and what it knows of columns (``views``). What the app does not name any more gets today's names at once, with
and without a network: what the file holds of the server's tables is as of its cursor, and has them. For a version that
the file has come beyond the server is asked for the names of then; until it has answered, the names are those of
before.

Where the server can't tell the version any more, the file notes which one is needed (``needs_version``): nothing is
sent or read until the app names another one.
"""

from __future__ import annotations

from typing import Any

from anabranch.client.errors import AppOutdated
from anabranch.client.events import State
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.state import FileState
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.schema.alter import become
from anabranch.client.schema.held import all_held
from anabranch.client.schema.names import make_room
from anabranch.client.schema.own_objects import drop_broken_triggers
from anabranch.client.schema.views import view_of
from anabranch.v1 import change_pb2, snapshot_pb2


def checked(version: Any) -> int:
    """The version that an app names, 0 for none. Raises ValueError where it can't be one."""
    if version is None:
        return 0
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"a schema version is a number from 1 on, not {version!r}")
    return version


def take_up(file: DeviceFile, wanted: int, pendings: Pendings) -> None:
    """Keep the version of the process that opens the file, where it is another one than the file's. The file is closed
    where that fails."""
    try:
        if file.current().app_version != wanted:
            with file.transaction() as tx:
                _tie(tx, wanted, pendings)
            file.listeners.deliver()
    except BaseException:
        file.close()
        raise


def _tie(tx: Tx, wanted: int, pendings: Pendings) -> None:
    if not wanted or wanted >= tx.state.ddl_version:
        held = all_held(tx.conn)
        make_room(tx, held, {name: one.today.sql_name or name for name, one in held.items()})
        for one in held.values():
            view = view_of(one.today, None)
            if view != one.view:
                become(tx, one, view, one.today, pendings)
        drop_broken_triggers(tx)
    tx.set(app_version=wanted, needs_version=0, describe_due=1)


def is_known(current: FileState, groups: list[change_pb2.LoggedGroup]) -> bool:
    """Whether an app knows, or is not tied to one, the versions to which groups behind the cursor change the schema."""
    changes = {g.position: g.schema_change for g in groups if g.schema_change and g.position > current.cursor_ms}
    if not current.app_version or not changes:
        return True
    return all(_version(data) <= current.app_version for data in changes.values())


def _version(data: bytes) -> int:
    try:
        return snapshot_pb2.SchemaChange.FromString(data).version
    except ValueError:
        return 0


def note(file: DeviceFile, error: AppOutdated) -> None:
    """Note that the server can't tell the app's version any more, and tell it once."""
    needed = max(1, error.version)
    if file.current().needs_version == needed:
        return
    with file.transaction() as tx:
        tx.set(needs_version=needed)
        tx.events.append(State("app_outdated", f"the app needs schema version {needed} at least: {error.message}"))
    file.listeners.deliver()


def require(current: FileState) -> None:
    """Raise AppOutdated where the app's version is known to be one that the server can't tell any more."""
    if current.needs_version:
        text = f"the app was built for schema version {current.app_version}, and needs {current.needs_version} by now"
        raise AppOutdated(f"{text}; what is queued stays", current.needs_version)
