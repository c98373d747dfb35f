from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from anabranch.store.session.errors import DENIED, BatchReason, Remedy, read_error
from anabranch.v1 import errors_pb2


def error(sqlstate: str) -> psycopg.Error:
    made = errors.lookup(sqlstate)() if sqlstate in _KNOWN else psycopg.DatabaseError()
    made.sqlstate = sqlstate
    return made


_KNOWN = {e.sqlstate for e in vars(errors).values() if isinstance(e, type) and issubclass(e, psycopg.Error)}


def test_every_error_of_postgres_has_the_remedy_of_its_class() -> None:
    blamed = {"22", "23", "42", "44", "54", "P0"}
    for sqlstate in filter(None, _KNOWN):
        expected = Remedy.BLAME if sqlstate[:2] in blamed else Remedy.RETRY
        assert read_error(error(sqlstate)).remedy is expected, sqlstate
    assert {s[:2] for s in _KNOWN if s} >= blamed | {"08", "40", "53", "55", "57", "58"}


@pytest.mark.parametrize("sqlstate", ["P0001", "PT409", "45000", "ZZ999"])
def test_what_an_application_raises_blames_a_batch(sqlstate: str) -> None:
    fault = read_error(error(sqlstate))
    assert (fault.remedy, fault.reason, fault.sqlstate) == (Remedy.BLAME, BatchReason.CONSTRAINT, sqlstate)


@pytest.mark.parametrize("sqlstate", ["23505", "42P01", "22001", "P0001", "ZZ999"])
def test_nothing_in_our_own_statements_blames_a_batch(sqlstate: str) -> None:
    fault = read_error(error(sqlstate), own_statement=True)
    assert (fault.remedy, fault.reason) == (Remedy.RETRY, None)


def test_a_right_that_is_missing_is_forbidden() -> None:
    assert read_error(error("42501")).reason is BatchReason.FORBIDDEN


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("table", "entries"),
        ("table", "my table"),
        ("table", 'a "quoted" name'),
        ("table", " blank before"),
        ("table", "two\nlines"),
        ("view", "server x"),
        ("foreign table", "t"),
        ("materialized view", "the view"),
        ("foreign-data wrapper", "w"),
        ("schema", "audit"),
    ],
)
def test_a_refused_object_is_known_by_its_kind_and_its_name_as_it_is(kind: str, name: str) -> None:
    found = DENIED.fullmatch(f"permission denied for {kind} {name}")
    assert found is not None
    assert found.groups() == (kind, name)


@pytest.mark.parametrize("text", ["permission denied for newfangled thing", "keine Berechtigung für Tabelle t", ""])
def test_what_is_no_refusal_of_a_known_kind_names_nothing(text: str) -> None:
    assert DENIED.fullmatch(text) is None


def test_what_the_server_did_not_say_is_tried_again() -> None:
    assert read_error(psycopg.OperationalError("the connection is lost")).remedy is Remedy.RETRY


def test_reasons_have_the_contracts_numbers() -> None:
    for reason in BatchReason:
        assert int(errors_pb2.Reason.Value(f"REASON_{reason.name}")) == reason.value
