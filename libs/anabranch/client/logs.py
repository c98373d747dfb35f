"""Logs of a device go where the app's own go: through the standard ``logging``, under ``anabranch.client``. An app that
configures nothing sees warnings on standard error, and nothing ever on standard output."""

from __future__ import annotations

import logging
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """A structured logger on top of the standard logger ``name``; fields come behind the message as ``key=value``."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )
