"""Failures of calls: a gRPC status with exactly one ErrorInfo, whose reason is one of ``anabranch.v1.Reason``.

Code below a servicer raises ``CallError``; the interceptor turns it into the status. Where a context is at
hand, ``abort`` does the same. The gRPC code follows from the reason, by the table here, so that it is the
same everywhere.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import (  # type: ignore[import-untyped]
    code_pb2,
    error_details_pb2,
    status_pb2,
)
from grpc_status import rpc_status

from anabranch.errors import ServerError
from anabranch.runtime import metrics
from anabranch.v1 import errors_pb2
from anabranch.v1.errors_pb2 import Reason
from anabranch.wire.enum_names import enum_name

DOMAIN = "anabranch"

CODES: dict[Reason.ValueType, grpc.StatusCode] = {
    errors_pb2.REASON_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    errors_pb2.REASON_CREDENTIALS_EXPIRED: grpc.StatusCode.UNAUTHENTICATED,
    errors_pb2.REASON_PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    errors_pb2.REASON_UNKNOWN_DATABASE: grpc.StatusCode.NOT_FOUND,
    errors_pb2.REASON_WRONG_PRINCIPAL: grpc.StatusCode.PERMISSION_DENIED,
    errors_pb2.REASON_NODE_FORKED: grpc.StatusCode.FAILED_PRECONDITION,
    errors_pb2.REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.REASON_OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors_pb2.REASON_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    errors_pb2.REASON_BEHIND_FLOOR: grpc.StatusCode.OUT_OF_RANGE,
    errors_pb2.REASON_INVALID_POSITION: grpc.StatusCode.OUT_OF_RANGE,
    errors_pb2.REASON_HISTORY_REWOUND: grpc.StatusCode.OUT_OF_RANGE,
    errors_pb2.REASON_APP_OUTDATED: grpc.StatusCode.FAILED_PRECONDITION,
    errors_pb2.REASON_INVALID_TOKEN: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.REASON_SERVER_FAULT: grpc.StatusCode.INTERNAL,
    errors_pb2.REASON_MESSAGE_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    # Reasons for which a batch is rejected, and for which a call may fail as well.
    errors_pb2.REASON_UNKNOWN_TABLE: grpc.StatusCode.NOT_FOUND,
    errors_pb2.REASON_LIMIT_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.REASON_INVALID_ID: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.REASON_TABLE_CHANGED: grpc.StatusCode.FAILED_PRECONDITION,
}
"""The gRPC code of every reason that a call can fail for."""

_RPC_CODES = {code: getattr(code_pb2, code.name) for code in set(CODES.values())}


MAX_TEXT_BYTES = 800
"""UTF-8 bytes of a message, and of each text beside it: a status travels in a header, of which clients take 8 KiB, and
there a message stands twice, once with three bytes for each that is not ASCII."""


class CallError(ServerError):
    """A call fails for ``reason``, which must be in ``CODES``. ``message`` is for people; ``metadata`` goes
    into ErrorInfo."""

    def __init__(self, reason: Reason.ValueType, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = metadata


def reason_name(reason: Reason.ValueType) -> str:
    """A reason as ErrorInfo, logs and metrics spell it: without the enum's prefix."""
    return enum_name(errors_pb2.Reason, reason)


def to_status(failure: CallError) -> grpc.Status:
    """The gRPC status of a failure, whose texts are cut. Raises KeyError where no call fails for its reason."""
    metadata = {name: _cut(text) for name, text in failure.metadata.items()}
    message = _cut(failure.message)
    info = error_details_pb2.ErrorInfo(reason=reason_name(failure.reason), domain=DOMAIN, metadata=metadata)
    detail = any_pb2.Any()
    detail.Pack(info)
    return rpc_status.to_status(
        status_pb2.Status(code=_RPC_CODES[CODES[failure.reason]], message=message, details=[detail])
    )


def _cut(text: str) -> str:
    raw = text.encode(errors="replace")
    if len(raw) <= MAX_TEXT_BYTES:
        return raw.decode()
    return raw[:MAX_TEXT_BYTES].decode(errors="ignore") + "…"


async def abort(
    context: grpc.aio.ServicerContext[Any, Any], reason: Reason.ValueType, message: str, **metadata: str
) -> NoReturn:
    """End the call with the status of ``CallError(reason, message, **metadata)``. Raises grpc.aio.AbortError,
    always."""
    status = to_status(CallError(reason, message, **metadata))
    metrics.count("anabranch_failures", reason=reason_name(reason))
    await context.abort(status.code, status.details, tuple(status.trailing_metadata))
    raise AssertionError("abort returned")


def error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo | None:
    """The ErrorInfo of a failed call, as its caller sees it; None where it carries none."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None
