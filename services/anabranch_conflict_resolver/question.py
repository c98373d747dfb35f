"""The question that a dry run answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.v1 import batch_pb2


@dataclass(frozen=True, slots=True)
class Question:
    """The caller, its node, and the batch that it asks about. The audiences are what the caller's claims give; those
    for writing are None where they are the same. ``claims``: all of them as JSON, where row-level security asks for
    them."""

    database_id: int
    principal: str
    node_id: str
    envelope: batch_pb2.Envelope
    read_audiences: Sequence[str] = ()
    write_audiences: Sequence[str] | None = None
    claims: str | None = None
