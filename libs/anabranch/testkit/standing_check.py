"""Holds, wherever a page is applied, what ``anabranch.client.file.standing`` promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from anabranch.client.file import standing
from anabranch.client.reading.apply import AppliedPage, Applier


@contextmanager
def checked_standing() -> Iterator[None]:
    """Inside the block, have every page that any device applies end with a look at the file. Raises AssertionError
    where what is known of it without one is not what it has."""
    applied_by = Applier._apply

    def checked(applier: Applier, tx: Any, *more: Any) -> AppliedPage:
        applied = applied_by(applier, tx, *more)
        if (known := tx.standing) is not None:
            there = standing.read(tx.conn)
            assert known.tables == {name: there.tables[name] for name in known.tables}
            assert not known.complete or known.tables.keys() == there.tables.keys()
            assert known.queued or not there.queued
            assert known.queued or known.based or not there.based
        return applied

    with mock.patch.object(Applier, "_apply", checked):
        yield
