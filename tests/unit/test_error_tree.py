"""All errors of the project are one tree, whose names say that they are errors and which."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator

import pytest

import anabranch
import anabranch.client
import anabranch_compactor
import anabranch_conflict_resolver
import anabranch_ingest
import anabranch_retention_janitor
import anabranch_snapshot
from anabranch.errors import AnabranchError, ServerError
from anabranch.runtime.calls.interceptor import foreseen
from anabranch.store.capture.undrained import UndrainedError
from anabranch.v1 import errors_pb2

PACKAGES = (
    anabranch,
    anabranch_compactor,
    anabranch_conflict_resolver,
    anabranch_ingest,
    anabranch_retention_janitor,
    anabranch_snapshot,
)
RUN_WHEN_IMPORTED = ("migrations.", "__main__")
PUBLIC = frozenset(anabranch.client.__all__)
"""Names that applications rely on."""
SIGNALS = {
    "anabranch.client.reading.repair.PullInstead": "tells the caller what to do instead",
    "anabranch.client.reading.sums._Stopped": "ends a sum that nobody wants any more",
    "anabranch.testkit.torture.writer._Enough": "ends a writer whose time is over",
    "anabranch.testkit.torture.writer._TakenBack": "has a transaction rolled back on purpose",
}
"""Exceptions that are no errors: they lead from one place to another."""
OF_GROUPS = "anabranch_conflict_resolver."
"""The reasons for which a group is tried again, by halves or without the one at fault, are no errors either: the
resolver names them."""


@pytest.fixture(scope="module")
def errors() -> tuple[type[Exception], ...]:
    """All exceptions that the project defines, in the order of their full names."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part in module.name for part in RUN_WHEN_IMPORTED):
                importlib.import_module(module.name)
    names = {package.__name__ for package in PACKAGES}
    own = {error for error in below(Exception) if error.__module__.partition(".")[0] in names}
    return tuple(sorted(own, key=full_name))


def below(error: type[Exception]) -> Iterator[type[Exception]]:
    for child in error.__subclasses__():
        yield child
        yield from below(child)


def full_name(error: type[Exception]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def lines(error: type[Exception], depth: int = 0) -> Iterator[str]:
    reason = getattr(error, "REASON", "")
    yield f"{'  ' * depth}{full_name(error)}{f' ({reason})' if reason else ''}"
    for child in sorted(error.__subclasses__(), key=full_name):
        yield from lines(child, depth + 1)


def test_the_tree_has_every_error(errors: tuple[type[Exception], ...]) -> None:
    print("\n".join(["", *lines(AnabranchError)]))
    beside = [full_name(e) for e in errors if not issubclass(e, AnabranchError)]
    assert [name for name in beside if not name.startswith(OF_GROUPS)] == []
    assert len(errors) > 50


def test_each_name_says_that_it_is_an_error(errors: tuple[type[Exception], ...]) -> None:
    others = {full_name(e) for e in errors if not e.__name__.endswith("Error") and e.__name__ not in PUBLIC}
    assert {name for name in others if not name.startswith(OF_GROUPS)} == set(SIGNALS)


def test_each_says_what_it_is(errors: tuple[type[Exception], ...]) -> None:
    silent = [full_name(e) for e in errors if not (e.__dict__.get("__doc__") or "").strip()]
    assert [name for name in silent if not name.startswith(OF_GROUPS)] == []


def test_no_two_have_one_name(errors: tuple[type[Exception], ...]) -> None:
    named = defaultdict(list)
    for error in errors:
        named[error.__name__].append(full_name(error))
    assert [names for names in named.values() if len(names) > 1] == []


def test_each_room_of_the_server_has_the_servers_errors(errors: tuple[type[Exception], ...]) -> None:
    rooms = ("anabranch.runtime.", "anabranch.store.", "anabranch.columnar.", "anabranch.cli.", "anabranch_")
    wrong = [full_name(e) for e in errors if full_name(e).startswith(rooms) and not issubclass(e, ServerError)]
    assert [name for name in wrong if not name.startswith(OF_GROUPS)] == []


def test_the_reasons_are_the_contracts(errors: tuple[type[Exception], ...]) -> None:
    named = {e: e.REASON for e in errors if issubclass(e, AnabranchError) and e.REASON}
    assert {f"REASON_{reason}" for reason in named.values()} <= set(errors_pb2.Reason.keys())
    assert len(named) >= 8


def test_a_call_that_an_error_with_a_reason_ends_fails_for_it() -> None:
    failure = foreseen("/anabranch.v1.SnapshotService/Pull", UndrainedError("todo"))
    assert failure.reason == errors_pb2.REASON_UNAVAILABLE
    assert "todo" in failure.message
