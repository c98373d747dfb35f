"""The audiences that a device has chosen, out of all that its principal may see.

The choice is a field of the file's state, and every call that reads sends it: the server leaves out what is not
chosen. What a change gives up leaves the file in the transaction that keeps the new choice; what it adds is gained when
the server is asked next (``describe_due`` ends a subscription under way, and begins one with the new choice).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from anabranch.client.events import State
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.reading import held
from anabranch.limits import MAX_AUDIENCE_BYTES


def checked(audiences: Iterable[Any] | None) -> frozenset[str] | None:
    """The audiences of an app's choice; None for all. Raises ValueError where they are none."""
    if audiences is None:
        return None
    if isinstance(audiences, str | bytes):
        raise ValueError(f"the chosen audiences are a list of texts, not {audiences!r}")
    chosen = frozenset(audiences)
    for one in chosen:
        if not isinstance(one, str) or not one or "\0" in one or len(one.encode()) > MAX_AUDIENCE_BYTES:
            raise ValueError(f"{one!r} is no audience")
    return chosen


def take_up(file: DeviceFile, wanted: frozenset[str] | None, pendings: Pendings) -> None:
    """Keep the choice of the process that opens the file, where it is another one than the file's. The file is closed
    where that fails."""
    try:
        if file.current().chosen_audiences != wanted:
            _choose(file, wanted, pendings)
    except BaseException:
        file.close()
        raise


def _choose(file: DeviceFile, wanted: frozenset[str] | None, pendings: Pendings) -> None:
    with file.transaction() as tx:
        lost = frozenset() if wanted is None else held.held(tx.conn) - wanted
        held.change(tx, (), lost, pendings, tx.state.cursor_ms)
        # A new file asks for its tables in any case.
        tx.set(
            audience_choice=None if wanted is None else json.dumps(sorted(wanted)),
            describe_due=int(tx.state.describe_due or tx.state.pulls > 0),
        )
        if lost:
            tx.events.append(State("given_up", ", ".join(sorted(lost))))
    file.listeners.deliver()
