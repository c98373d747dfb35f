"""What a dry run is asked."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.v1 import batch_pb2


@dataclass(frozen=True, slots=True)
class Question:
    """Who asks, and what."""

    database_id: int
    principal: str
    node_id: str
    envelope: batch_pb2.Envelope
