"""The question that a dry run answers."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.v1 import batch_pb2


@dataclass(frozen=True, slots=True)
class Question:
    """The caller, its node, and the batch that it asks about."""

    database_id: int
    principal: str
    node_id: str
    envelope: batch_pb2.Envelope
