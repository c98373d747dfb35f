"""Wraps every call: checks its credentials and its rate, and adds its trace, its errors and its metrics.

One interceptor, because each one more costs every call. Handlers are wrapped once per method. Requests are
measured while they are still bytes: one that is too large or can't be parsed reaches the wrapper as an
``Unreadable``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from opentelemetry import trace

from anabranch.errors import AnabranchError
from anabranch.runtime import metrics, telemetry
from anabranch.runtime.auth import Authenticator, Identity
from anabranch.runtime.dropping import drop_call
from anabranch.runtime.errors import CODES, CallError, abort, reason_name
from anabranch.runtime.limits import RateLimit
from anabranch.runtime.principal import set_principal
from anabranch.runtime.streams import OpenStream, Streams, moving
from anabranch.store.session.availability import is_unavailable
from anabranch.v1 import errors_pb2

Context = grpc.aio.ServicerContext[Any, Any]
_log = structlog.get_logger()

HEALTH_PREFIX = "/grpc.health.v1.Health/"
REFLECTION_PREFIX = "/grpc.reflection."
TELL_S = 5.0
"""Seconds in which the caller of a stream that is ended can take the rest of it and the reason."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request that was not taken in."""

    failure: CallError


def measured(deserialize: Callable[[bytes], Any] | None, max_bytes: int) -> Callable[[bytes], Any]:
    """``deserialize`` (None: the bytes as they are) for messages up to ``max_bytes``; an Unreadable for others."""

    def read(raw: bytes) -> Any:
        if len(raw) > max_bytes:
            return Unreadable(
                CallError(
                    errors_pb2.REASON_MESSAGE_TOO_LARGE,
                    f"a message of {len(raw)} bytes; at most {max_bytes} are taken",
                    max_bytes=str(max_bytes),
                )
            )
        try:
            return raw if deserialize is None else deserialize(raw)
        except DecodeError:
            return Unreadable(CallError(errors_pb2.REASON_INVALID_REQUEST, "the request is no message of this call"))

    return read


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls and turns their errors into statuses.

    Health needs no credentials, because a probe has none; it says only whether the process serves. Reflection is open
    where ``open_reflection`` says so (a server on loopback), else it needs credentials like any call.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        rate: RateLimit,
        streams: Streams,
        *,
        max_message_bytes: int,
        first_request_ms: int,
        open_reflection: bool,
    ) -> None:
        self._authenticator = authenticator
        self._rate = rate
        self._streams = streams
        self._max_message_bytes = max_message_bytes
        self._first_request_ms = first_request_ms
        self._open_prefixes = (HEALTH_PREFIX, REFLECTION_PREFIX) if open_reflection else (HEALTH_PREFIX,)
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's wrapped handler."""
        self._streams.taken += 1
        method: str = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler: Any = await continuation(handler_call_details)
            if handler is None:
                # No such method: gRPC answers UNIMPLEMENTED. Not kept, or callers could fill the memory with
                # names.
                return None
            wrapped = self._wrapped[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(self, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        serialize = handler.response_serializer
        deserialize = measured(handler.request_deserializer, self._max_message_bytes)
        if not handler.request_streaming and not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), deserialize, serialize)
        if not handler.request_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream, False), deserialize, serialize
            )
        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(
                self._stream(method, handler.stream_unary, True), deserialize, serialize
            )
        return grpc.stream_stream_rpc_method_handler(
            self._stream(method, handler.stream_stream, True), deserialize, serialize
        )

    async def _admit(self, method: str, context: Context) -> Identity | None:
        authorization: str | bytes | None = None
        traceparent: str | None = None
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                authorization = value
            elif name == "traceparent" and isinstance(value, str):
                traceparent = value
        telemetry.accept_traceparent(traceparent)
        if method.startswith(self._open_prefixes):
            return None
        try:
            identity = await self._authenticator.identify(authorization)
        except CallError as failure:
            metrics.count("anabranch_refused_credentials", reason=reason_name(failure.reason))
            raise
        set_principal(identity.principal)
        self._rate.take(identity.principal.subject)
        return identity

    async def _may_end(self, method: str) -> None:
        # A load balancer, which sends callers here, has to learn at once that it is to stop.
        if not method.startswith(HEALTH_PREFIX):
            await self._streams.may_end()

    def _unary(self, method: str, behaviour: Callable[[Any, Context], Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Context) -> Any:
            started = time.monotonic()
            code = "CANCELLED"
            task = asyncio.current_task()
            assert task is not None
            self._streams.unary.add(task)
            try:
                await self._admit(method, context)
                if isinstance(request, Unreadable):
                    raise request.failure
                with telemetry.call_span(method):
                    try:
                        answer = await behaviour(request, context)
                    except (CallError, grpc.aio.AbortError):
                        raise
                    except Exception as error:
                        # Judged inside the span, whose id then stands in the log.
                        raise foreseen(method, error) from error
                await self._may_end(method)
                code = "OK"
                return answer
            except grpc.aio.AbortError:
                code = _name(context.code())
                raise
            except asyncio.CancelledError:
                if not self._streams.cut_off:
                    raise
                task.uncancel()
                code = grpc.StatusCode.UNAVAILABLE.name
                failure = moving()
                return await abort(context, failure.reason, failure.message)
            except Exception as error:
                failure = foreseen(method, error)
                code = CODES[failure.reason].name
                await self._may_end(method)
                return await abort(context, failure.reason, failure.message, **failure.metadata)
            finally:
                self._streams.unary.discard(task)
                metrics.count("anabranch_calls", method=method, code=code)
                metrics.record("anabranch_call_duration", time.monotonic() - started, method=method)

        return call

    def _stream(self, method: str, behaviour: Callable[..., Any], request_streaming: bool) -> Any:
        """Return a coroutine that writes the responses itself: so every wait of the stream is in it, and can be ended
        from outside."""

        async def call(request: Any, context: Context) -> Any:
            stream: OpenStream | None = None
            code = "CANCELLED"
            try:
                identity = await self._admit(method, context)
                stream = self._streams.add(method, identity)
                if isinstance(request, Unreadable):
                    raise request.failure
                with telemetry.call_span(method):
                    try:
                        if request_streaming:
                            async with contextlib.aclosing(self._requests(request, identity)) as requests:
                                answer = await _serve_stream(behaviour, requests, context)
                        else:
                            answer = await _serve_stream(behaviour, request, context)
                    except (CallError, grpc.aio.AbortError):
                        raise
                    except grpc.aio.InternalError as error:
                        # A write to a reader that is gone ends so if the cancellation has not come through yet.
                        raise asyncio.CancelledError from error
                    except Exception as error:
                        raise foreseen(method, error) from error
                await self._may_end(method)
                code = "OK"
                return answer
            except grpc.aio.AbortError:
                code = _name(context.code())
                raise
            except asyncio.CancelledError:
                if stream is None or stream.failure is None:
                    raise
                stream.task.uncancel()
                code = CODES[stream.failure.reason].name
                return await _tell(context, stream.task, stream.failure)
            except Exception as error:
                failure = foreseen(method, error)
                code = CODES[failure.reason].name
                await self._may_end(method)
                return await abort(context, failure.reason, failure.message, **failure.metadata)
            finally:
                if stream is not None:
                    self._streams.remove(stream)
                metrics.count("anabranch_calls", method=method, code=code)

        return call

    async def _requests(self, requests: AsyncIterator[Any], identity: Identity | None) -> AsyncGenerator[Any, None]:
        coming = aiter(requests)
        waited_s = self._first_request_ms / 1000
        try:
            async with asyncio.timeout(waited_s):
                request = await anext(coming)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise CallError(
                errors_pb2.REASON_INVALID_REQUEST, f"the stream's first request did not come within {waited_s:g} s"
            ) from None
        yield _readable(request)
        async for request in coming:
            readable = _readable(request)
            if identity is not None:
                # The stream's opening took a token. From then on a principal that is too fast waits: gRPC's
                # flow control hands the delay on to it. Bounded by the stream's own end, which cancels this.
                while wait_s := self._rate.wait_s(identity.principal.subject):
                    await asyncio.sleep(wait_s)
            yield readable


def _readable(request: Any) -> Any:
    """The request. Raises the CallError of one that was not taken in."""
    if isinstance(request, Unreadable):
        raise request.failure
    return request


async def _serve_stream(behaviour: Callable[..., Any], request: Any, context: Context) -> Any:
    if not inspect.isasyncgenfunction(behaviour):
        return await behaviour(request, context)
    begun = False
    async with contextlib.aclosing(behaviour(request, context)) as responses:
        async for response in responses:
            if not begun:
                # By itself: gRPC notes that it was sent when the first message was taken, and would send it once more,
                # and fail, with the status of a stream that ends before.
                await context.send_initial_metadata(())
                begun = True
            await context.write(response)
    return None


async def _tell(context: Context, task: asyncio.Task[Any], failure: CallError) -> None:
    """End a stream with its failure. A caller that takes nothing does not take that either: then it is dropped."""
    try:
        async with asyncio.timeout(TELL_S):
            await abort(context, failure.reason, failure.message, **failure.metadata)
    except (TimeoutError, grpc.aio.InternalError):
        drop_call(task)
        raise asyncio.CancelledError from None


def _name(code: Any) -> str:
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


def foreseen(method: str, error: Exception) -> CallError:
    """Return the failure of a call that raised ``error``. An unforeseen error is logged in full, and the caller gets
    only its trace id."""
    if isinstance(error, CallError):
        return error
    if isinstance(error, AnabranchError) and error.REASON:
        reason = errors_pb2.Reason.Value(f"REASON_{error.REASON}")
        if reason in CODES:
            return CallError(reason, str(error) or error.__doc__ or error.REASON)
    if is_unavailable(error):
        _log.warning("call without its database", method=method, error=type(error).__name__, detail=error)
        return CallError(errors_pb2.REASON_UNAVAILABLE, "the database is not available now")
    trace_id = telemetry.fault_id()
    _log.error("call failed", method=method, fault_trace_id=trace_id, exc_info=error)
    telemetry.mark_failed(trace.get_current_span(), error)
    return CallError(
        errors_pb2.REASON_SERVER_FAULT,
        f"the server failed; its log has more under {trace_id}",
        trace_id=trace_id,
    )
