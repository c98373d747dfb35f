"""Devices in a process of their own, beside the bench that measures them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from anabranch.bench.stage import Stage


@contextmanager
def device(on: Stage, work: Callable[..., None], *more: Any, patience_s: float) -> Iterator[Connection]:
    """Have ``work(pipe, addresses, key, *more)`` done by a process for the block, which has the pipe's other
    end; where the process fails, that ends (EOFError). After the block it has ``patience_s`` seconds to end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (there, dict(on.stack.addresses), on.stack.key, *more)
    process = context.Process(target=work, args=arguments, daemon=True)
    process.start()
    # Only the process holds that end then, so that its exit closes the pipe.
    there.close()
    try:
        yield here
        process.join(patience_s)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
