"""Wraps every call: checks its credentials and its rate, and adds its trace, its errors and its metrics.

One interceptor, because each one more costs every call. Handlers are wrapped once per method. A call is judged by its
metadata (``admission``); only then its message is taken, within bounds (``requests``), and parsed. Calls that need no
credentials have bounds of their own (``strangers``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from opentelemetry import trace

from anabranch.errors import AnabranchError
from anabranch.runtime import metrics, telemetry
from anabranch.runtime.calls.admission import CallAdmission, admitted, take_trace
from anabranch.runtime.calls.dropping import drop_call
from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.calls.requests import Reader, UnderWay, paced, serve_stream
from anabranch.runtime.calls.strangers import Strangers
from anabranch.runtime.calls.streams import OpenStream, Streams, moving
from anabranch.runtime.errors import CODES, CallError, abort
from anabranch.store.session.availability import is_unavailable
from anabranch.v1 import errors_pb2

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[..., Any]
_log = structlog.get_logger()

HEALTH_PREFIX = "/grpc.health.v1.Health/"
REFLECTION_PREFIX = "/grpc.reflection."
TELL_S = 5.0
"""Seconds in which the caller of a stream that is ended can take the rest of it and the reason."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls and turns their errors into statuses.

    Health needs no credentials, because a probe has none; it says only whether the process serves. Reflection is open
    where ``open_reflection`` says so (a server on loopback), else it needs credentials like any call.
    """

    def __init__(
        self,
        admission: CallAdmission,
        rate: RateLimit,
        streams: Streams,
        under_way: UnderWay,
        *,
        max_message_bytes: int,
        first_request_ms: int,
        open_reflection: bool,
    ) -> None:
        self._admission = admission
        self._rate = rate
        self._streams = streams
        self._under_way = under_way
        self._strangers = Strangers()
        self._max_message_bytes = max_message_bytes
        self._first_request_s = first_request_ms / 1000
        self._open_prefixes = (HEALTH_PREFIX, REFLECTION_PREFIX) if open_reflection else (HEALTH_PREFIX,)
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's wrapped handler, or one that refuses the call without taking its message."""
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
        metadata: Any = handler_call_details.invocation_metadata or ()
        take_trace(metadata)
        if method.startswith(self._open_prefixes):
            return wrapped
        refused = await self._refused(method, metadata)
        return wrapped if refused is None else refused

    async def _refused(self, method: str, metadata: Any) -> Handler | None:
        """None where the call is admitted. gRPC goes on with it in this very task."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.unary.add(task)
        try:
            await self._admission.judge(metadata)
            return None
        except asyncio.CancelledError:
            if not self._streams.cut_off:
                raise
            task.uncancel()
            failure = moving()
        except Exception as error:
            failure = told(method, error)
        finally:
            self._streams.unary.discard(task)

        async def refuse(requests: Any, context: Context) -> None:
            metrics.count("anabranch_calls", method=method, code=CODES[failure.reason].name)
            await self._fail(method, context, failure)

        # A handler for a stream of requests is not given any before it asks.
        return grpc.stream_unary_rpc_method_handler(refuse)

    def _wrap(self, method: str, handler: Any) -> Handler:
        serialize = handler.response_serializer
        streams_in, streams_out = handler.request_streaming, handler.response_streaming
        behaviour: Behaviour = getattr(
            handler,
            ("stream_" if streams_in else "unary_") + ("stream" if streams_out else "unary"),
        )
        if method.startswith(self._open_prefixes):
            serve = self._strangers.serving(behaviour, handler.request_deserializer, streams_in)
            make = grpc.stream_stream_rpc_method_handler if streams_out else grpc.stream_unary_rpc_method_handler
            return make(self._stream(method, serve, open_to_all=True), None, serialize)
        reader = Reader(handler.request_deserializer, self._max_message_bytes)
        if not streams_in and not streams_out:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, behaviour, reader), None, serialize)
        if not streams_in:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, self._serve_one(behaviour, reader)), None, serialize
            )
        make = grpc.stream_stream_rpc_method_handler if streams_out else grpc.stream_unary_rpc_method_handler
        return make(self._stream(method, self._serve_many(behaviour, reader)), None, serialize)

    async def _may_end(self, method: str) -> None:
        # A load balancer, which sends callers here, has to learn at once that it is to stop.
        if not method.startswith(HEALTH_PREFIX):
            await self._streams.may_end()

    async def _fail(self, method: str, context: Context, failure: CallError) -> NoReturn:
        await self._may_end(method)
        await abort(context, failure.reason, failure.message, **failure.metadata)

    def _unary(self, method: str, behaviour: Callable[[Any, Context], Awaitable[Any]], reader: Reader) -> Any:
        async def call(raw: bytes | None, context: Context) -> Any:
            assert raw is not None
            started = time.monotonic()
            code = "CANCELLED"
            task = asyncio.current_task()
            assert task is not None
            self._streams.unary.add(task)
            try:
                with self._under_way.holding(admitted().principal.subject, reader.cost(raw)):
                    request = reader.read(raw)
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
                failure = moving()
                code = CODES[failure.reason].name
            except Exception as error:
                failure = told(method, error)
                code = CODES[failure.reason].name
            finally:
                self._streams.unary.discard(task)
                metrics.count("anabranch_calls", method=method, code=code)
                metrics.record("anabranch_call_duration", time.monotonic() - started, method=method)
            # gRPC keeps this frame, in the traceback of the error by which it ends the call, until garbage is
            # collected: so nothing large is in it, and the error has no other one behind it.
            raw = request = None
            return await self._fail(method, context, failure)

        return call

    def _serve_one(self, behaviour: Behaviour, reader: Reader) -> Behaviour:
        async def serve(raw: bytes, context: Context, stream: OpenStream) -> Any:
            with self._under_way.holding(admitted().principal.subject, reader.cost(raw)):
                return await serve_stream(behaviour, reader.read(raw), context)

        return serve

    def _serve_many(self, behaviour: Behaviour, reader: Reader) -> Behaviour:
        async def serve(requests: Any, context: Context, stream: OpenStream) -> Any:
            subject = admitted().principal.subject
            coming = paced(context, reader, self._under_way, self._rate, subject, self._first_request_s)
            async with contextlib.aclosing(coming) as messages:
                return await serve_stream(behaviour, messages, context)

        return serve

    def _stream(self, method: str, serve: Behaviour, *, open_to_all: bool = False) -> Any:
        """Return a coroutine that writes the responses itself: so every wait of the stream is in it, and can be ended
        from outside."""

        async def call(request: Any, context: Context) -> Any:
            stream: OpenStream | None = None
            ended: asyncio.Task[object] | None = None
            code = "CANCELLED"
            try:
                stream = self._streams.add(method, None if open_to_all else admitted())
                with telemetry.call_span(method):
                    try:
                        answer = await serve(request, context, stream)
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
                failure = stream.failure
                code = CODES[failure.reason].name
                ended = stream.task
            except Exception as error:
                failure = told(method, error)
                code = CODES[failure.reason].name
            finally:
                if stream is not None:
                    self._streams.remove(stream)
                metrics.count("anabranch_calls", method=method, code=code)
            request = None  # as in ``_unary``
            if ended is not None:
                return await _tell(context, ended, failure)
            return await self._fail(method, context, failure)

        return call


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


def told(method: str, error: Exception) -> CallError:
    """``foreseen``, without the traceback: kept by the call that it is told to, it would keep the call's frames, and so
    the request, until garbage is collected."""
    failure = foreseen(method, error)
    return CallError(failure.reason, failure.message, **failure.metadata)


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
