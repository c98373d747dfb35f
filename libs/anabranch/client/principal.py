"""The principal of a token, as far as the device can tell by itself."""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import AbstractContextManager

from anabranch.client.errors import WrongPrincipal
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.state import FileState
from anabranch.client.remote import RemoteDb
from anabranch.v1 import position_pb2, snapshot_pb2


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


def refusal(owner: str | None, token: str | None) -> str | None:
    """The reason why a token is not the owner's: "" where it is, None where one of the two has no name here."""
    subject = subject_of(token)
    if subject is None or owner is None:
        return None
    return "" if subject == owner else f"the file belongs to {owner}, not to {subject}"


def owned(file: DeviceFile, remote: RemoteDb) -> AbstractContextManager[None]:
    """A block in which no call is made with a token that names another principal than the file's owner. Such a call
    raises WrongPrincipal: the server does not know the node before it has sent, and would take the queue as the other
    one's."""

    def judge(token: str | None) -> None:
        if why := refusal(file.current().principal, token):
            raise WrongPrincipal(why)

    return remote.judged(judge)


def ask_whose(remote: RemoteDb, current: FileState) -> None:
    """Ask the server whose the file's node is. A call that names batches and no node gets no answer for another
    principal's, as if they were lost: so this is asked before a batch is given up because the server does not know it.
    Raises WrongPrincipal, and CallFailed where the server does not say it."""
    # No positions are sent: a server that was restored would refuse those instead of saying whose the node is.
    state = position_pb2.NodeState(node=current.node)
    remote.describe(snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=state))
