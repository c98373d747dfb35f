"""Every text of every request of every service: a bad one fails the call with one listed reason, and harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from tests.notes import notes_url
from ulid import ULID

from anabranch.runtime.calls.forms import FORMS, JUDGED_ELSEWHERE, plan_of
from anabranch.runtime.errors import CODES, reason_name
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import bearer, outcome
from anabranch.testkit.stack import Stack
from anabranch.v1 import change_pb2, errors_pb2, ingest_pb2, resolver_pb2, retention_pb2, snapshot_pb2

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forms")]  # its processes are shared by its tests
FILES = {
    ingest_pb2: "ingest",
    change_pb2: "snapshot",
    snapshot_pb2: "snapshot",
    resolver_pb2: "conflict-resolver",
    retention_pb2: "retention-janitor",
}
ALL: dict[Any, str] = {
    method: name
    for file, name in FILES.items()
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
METHODS = [pytest.param(name, method, id=f"{method.name}-of-{name}") for method, name in ALL.items()]
PLACE = "~~~"
BAD = {
    "nul": b"a\0b",
    "long": b"x" * 1_000_000,
    "escape": b"a\x1b[31m",
    "newline": b"a\nb",
    "surrogate": b"\xed\xa0\x80",
}
LISTED = {reason_name(reason) for reason in CODES} - {"SERVER_FAULT"}
Path = tuple[str, ...]


@pytest.fixture(scope="module")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = notes_url(databases)
    with Stack(url, folder=tmp_path_factory.mktemp("stack")) as running:
        yield running
    databases.release(url)


def texts_of(descriptor: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All texts of a message, by path; within a value of an array none."""
    for field in descriptor.fields:
        if field.type == field.TYPE_STRING:
            yield (*path, field.name), field
        elif field.message_type is not None and field.message_type.name != "ArrayValue":
            yield from texts_of(field.message_type, (*path, field.name))


def request_with(method: Any, path: Path, text: str) -> Any:
    """A request that is in order but for one text."""
    request: Any = {"SendStreamRequest": ingest_pb2.SendStreamRequest}.get(method.input_type.name)
    request = request or getattr(
        next(file for file in FILES if file.DESCRIPTOR is method.input_type.file), method.input_type.name
    )
    message = request(db_name="notes")
    if "node_state" in method.input_type.fields_by_name:
        message.node_state.node.id = str(ULID())
    if "envelope" in method.input_type.fields_by_name:
        message.envelope.payload = b"no batch"
    if "key" in method.input_type.fields_by_name:
        message.table = "note"
    inner = message
    for name in path[:-1]:
        inner = getattr(inner, name)
        inner = inner.add() if hasattr(inner, "add") else inner
    if hasattr(getattr(inner, path[-1]), "append"):
        getattr(inner, path[-1]).append(text)
    else:
        setattr(inner, path[-1], text)
    return message


def raw_with(method: Any, path: Path, bad: bytes) -> bytes:
    """A message as bytes, with a text in it that no message takes."""
    try:
        return bytes(request_with(method, path, bad.decode()).SerializeToString())
    except UnicodeDecodeError:
        raw = bytes(request_with(method, path, PLACE).SerializeToString())
        assert raw.count(PLACE.encode()) == 1
        assert len(bad) == len(PLACE)
        return raw.replace(PLACE.encode(), bad)


def told(channel: grpc.Channel, key: str, method: Any, raw: bytes) -> str:
    """The reason of a call; "" where it succeeds."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    identity = (lambda raw: raw, lambda raw: raw)
    options: Any = {"timeout": 20, "metadata": bearer(key)}

    def call() -> None:
        if method.client_streaming:
            next(iter(channel.stream_stream(path, *identity)(iter([raw]), **options)), None)
        elif method.server_streaming:
            answers = channel.unary_stream(path, *identity)(raw, **options)
            next(answers, None)
            answers.cancel()
        else:
            channel.unary_unary(path, *identity)(raw, **options)

    code, reason = outcome(call)
    assert code != "INTERNAL", reason
    return reason


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_every_text_of_every_request(stack: Stack, name: str, method: Any) -> None:
    texts = list(texts_of(method.input_type))
    assert texts
    with grpc.insecure_channel(stack.addresses[name]) as channel:
        for path, field in texts:
            own = f"{field.containing_type.name}.{field.name}"
            form = FORMS[own] if own in FORMS else FORMS[field.name]
            for what, bad in BAD.items():
                reason = told(channel, stack.key, method, raw_with(method, path, bad))
                case = f"{'.'.join(path)}: {what}: {reason}"
                if what == "surrogate" or (form is not JUDGED_ELSEWHERE and form.fault(bad.decode())):
                    assert reason == "INVALID_REQUEST", case
                else:
                    assert reason in LISTED | {""}, case
    log = (stack.folder / f"{name}.log").read_text()
    assert "call failed" not in log


@pytest.mark.parametrize("size", [9_000, 15_000, 40_000])
def test_a_long_token_is_refused_with_a_reason(stack: Stack, size: int) -> None:
    method = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"].methods_by_name["Send"]
    with grpc.insecure_channel(stack.addresses["ingest"]) as channel:
        assert told(channel, "x" * size, method, b"") == "UNAUTHENTICATED"


def test_the_failure_of_a_long_name_has_its_reason(stack: Stack) -> None:
    """A message that names it would be longer than the headers that a client takes."""
    method = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].methods_by_name["Pull"]
    raw = snapshot_pb2.PullRequest(db_name="notes", required=[{"table": "é" * 127}]).SerializeToString()  # type: ignore[list-item]
    with grpc.insecure_channel(stack.addresses["snapshot"]) as channel:
        assert told(channel, stack.key, method, raw) == "UNKNOWN_TABLE"


def test_every_form_belongs_to_a_text() -> None:
    """One that belongs to none is a form of a field that has another name by now."""
    texts = [field for method in ALL for _, field in texts_of(method.input_type)]
    known = {f"{field.containing_type.name}.{field.name}" for field in texts} | {field.name for field in texts}
    assert set(FORMS) - known == {"HealthCheckRequest.service"}


def test_a_text_without_a_form_keeps_a_service_from_starting() -> None:
    with pytest.raises(KeyError):
        plan_of(error_details_pb2.ErrorInfo.DESCRIPTOR)


def test_reasons_are_listed() -> None:
    assert {f"REASON_{name}" for name in LISTED} <= set(errors_pb2.Reason.keys())
