"""Vectors read and written again."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from anabranch.v1 import batch_pb2, change_pb2, ingest_pb2, position_pb2, snapshot_pb2, value_pb2, verdict_pb2

MODULES = (batch_pb2, change_pb2, ingest_pb2, position_pb2, snapshot_pb2, value_pb2, verdict_pb2)


def conformance(vectors: list[dict[str, Any]]) -> dict[str, Any]:
    """Every vector, from its bytes and from its JSON."""
    return {"vectors": [again(vector) for vector in vectors]}


def again(vector: dict[str, Any]) -> dict[str, Any]:
    """One vector."""
    name = vector["message"].rpartition(".")[2]
    kind: type[Message] = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    decoded = kind.FromString(bytes.fromhex(vector["bytes"]))
    parsed = json_format.ParseDict(vector["json"], kind())
    return {
        "name": vector["name"],
        "decoded": decoded.SerializeToString(deterministic=True).hex(),
        "parsed": parsed.SerializeToString(deterministic=True).hex(),
        "json": json_format.MessageToDict(decoded),
    }
