"""A stack's services as a device calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.client import RemoteDb
from anabranch.client.token import Token


def remote_of(addresses: Mapping[str, str], token: Token, interceptors: Sequence[Any] = ()) -> RemoteDb:
    """The services at ``addresses``, host:port by service as in ``Stack.addresses``. ``token`` and ``interceptors`` are
    RemoteDb's."""
    return RemoteDb(
        ingest=addresses["ingest"],
        snapshot=addresses["snapshot"],
        resolver=addresses["conflict-resolver"],
        token=token,
        interceptors=interceptors,
    )
