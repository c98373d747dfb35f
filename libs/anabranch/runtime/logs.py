"""Logs: one JSON object a line on standard error, with the trace's id where one is under way.

``structlog.get_logger()`` is the way to log; what libraries write through the standard module comes out alike. An
error is given as it is (``detail=error``, ``exc_info=error``), never as its text: here, in one place, it is put into
words that quote no row and no credentials (``store.session.told``). What nobody caught is written here, too, and what
gRPC's core would write is not (``runtime``). One cause does not flood a log (``log_floods``).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import MutableMapping
from traceback import walk_tb
from types import TracebackType
from typing import Any

import structlog
from opentelemetry import trace

from anabranch.runtime.log_floods import Flood, cut_texts
from anabranch.store.session.told import told

FRAMES_AT_MOST = 50
_log = structlog.get_logger()
_Event = MutableMapping[str, Any]


def _add_trace(_logger: Any, _method: str, event: _Event) -> _Event:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _tell_errors(_logger: Any, _method: str, event: _Event) -> _Event:
    for name, value in event.items():
        if isinstance(value, BaseException) and name != "exc_info":
            event[name] = told(value)
    return event


def _tell_stacks(exc_info: tuple[Any, BaseException, TracebackType | None]) -> list[dict[str, Any]]:
    return _stacks(exc_info[1])


def _stacks(error: BaseException | None) -> list[dict[str, Any]]:
    """``error`` and what caused it, with the places in the code, and without their variables: they hold rows and
    credentials."""
    stacks: list[dict[str, Any]] = []
    seen: set[int] = set()
    is_cause = False
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = [
            {"filename": frame.f_code.co_filename, "lineno": line, "name": frame.f_code.co_name}
            for frame, line in walk_tb(error.__traceback__)
        ]
        stack: dict[str, Any] = {
            "exc_type": type(error).__name__,
            "exc_value": told(error),
            "is_cause": is_cause,
            "frames": frames[-FRAMES_AT_MOST:],
        }
        if isinstance(error, BaseExceptionGroup):
            stack["exceptions"] = [_stacks(one) for one in error.exceptions]
        stacks.append(stack)
        is_cause = error.__cause__ is not None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return stacks


def _tell_arguments(record: logging.LogRecord) -> bool:
    """Put the errors among the arguments of a library's line into our words, and leave out bytes, as gRPC writes of a
    header that is no text."""
    if isinstance(record.args, tuple):
        record.args = tuple(_argument(one) for one in record.args)
    return True


def _argument(value: object) -> object:
    if isinstance(value, BaseException):
        return told(value)
    return f"{len(value)} bytes" if isinstance(value, bytes | bytearray | memoryview) else value


def configure_logs(service: str, level: str) -> None:
    """Log from ``level`` (debug, info, warning, error) upwards; every line names ``service``. Once a
    process."""

    def add_service(_logger: Any, _method: str, event: _Event) -> _Event:
        event["service"] = service
        return event

    flood = Flood()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
        _add_trace,
        structlog.processors.ExceptionRenderer(_tell_stacks),
        _tell_errors,
        cut_texts,
    ]
    number = logging.getLevelName(level.upper())
    structlog.configure(
        processors=[flood.processor, *shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(flood.filter)
    handler.addFilter(_tell_arguments)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(["left_out"]), *shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    # Libraries speak only when something is wrong, unless everything is asked for.
    logging.basicConfig(
        handlers=[handler], level=number if level == "debug" else max(number, logging.WARNING), force=True
    )
    # It writes every command that it sends to Spark, with the values in it.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    _write_what_nobody_caught()


def _write_what_nobody_caught() -> None:
    def of_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            _log.error("not caught", exc_info=error)

    def of_thread(given: threading.ExceptHookArgs) -> None:
        thread = given.thread.name if given.thread is not None else ""
        _log.error("not caught", thread=thread, exc_info=given.exc_value)

    def of_finalizer(given: Any) -> None:
        _log.error("not caught", exc_info=given.exc_value)

    sys.excepthook = of_program
    threading.excepthook = of_thread
    sys.unraisablehook = of_finalizer


def write_error_of_loop(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's handler of errors. Its own one writes a task with its result, a call with its arguments."""
    about = str(context.get("message", "")).partition(" callback ")[0]
    _log.error("not caught in the event loop", about=about, exc_info=context.get("exception"))
