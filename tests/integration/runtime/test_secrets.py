"""Credentials and values of rows go where they were sent, and nowhere else: no log, span, metric, other caller or list
of processes has them, whatever fails."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import jwt
import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from psycopg.conninfo import conninfo_to_dict
from ulid import ULID

from anabranch.store import migrate
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import bearer
from anabranch.testkit.key_sets import new_elliptic
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, change_pb2, change_pb2_grpc, ingest_pb2, ingest_pb2_grpc, position_pb2, value_pb2

pytestmark = pytest.mark.slow

TABLES = """
create table parent (id text primary key);
create table person (
    id text primary key, email text unique, age int, born date, price numeric(8, 2), data jsonb, tag uuid, photo bytea,
    at timestamptz, parent text references parent (id), constraint grown check (age > 17)
);
create table fragile (id text primary key, note text);
create domain quantity as int;
create table stock (id text primary key, n quantity);
create function speak() returns trigger language plpgsql as $$
begin
    if new.note like 'retry%' then
        raise exception 'no room for %', new.note using errcode = '58030', constraint = new.note, table = new.note;
    elsif new.note like 'cast%' then
        perform new.note::int;
    end if;
    raise exception 'refused %', new.note using detail = new.note, hint = new.note;
end $$;
create constraint trigger speak after insert on fragile deferrable initially deferred
for each row execute function speak();
"""
TABLE_NAMES = ("parent", "person", "fragile", "stock")
TEXTS = {
    name: f"planted-{name}-7f3a9"
    for name in ("email", "taken", "cast", "retry", "raise", "captured", "data", "key", "orphan", "photo", "misfit")
}
"""Values of rows that nobody but their sender, or who may read the rows, gets to see."""
NUMBERS = {"age": -741_852_963, "price": "987654321.98", "stock": -963_852_741}
JWT_SECRET = "planted-jwt-secret-of-thirty-two-bytes"
WRONG_PASSWORD = "planted-wrong-password"
KEY_SET_PASSWORD = "planted-password-of-the-key-set"
CLAIM = "planted-claim-7f3a9"


class Collector(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):
    """Takes in spans and metrics, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.names: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.taken.append(str(request))
        if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
            return metrics_service_pb2.ExportMetricsServiceResponse()
        for resource in request.resource_spans:
            self.names |= {span.name for scope in resource.scope_spans for span in scope.spans}
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Collector, int]]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, port
    server.stop(0).wait()


class Watched:
    """Everything that was written while the block lasted, and what was planted."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}
        self.written: dict[str, str] = {}

    def plant(self, name: str, value: str) -> str:
        self.planted[name] = value
        return value

    def found(self) -> list[str]:
        """Which of what was planted stands where."""
        forms = {
            name: {value, json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode(), value.encode().hex()}
            for name, value in self.planted.items()
        }
        return [
            f"{name} in {place}: …{text[max(0, text.index(form) - 150) : text.index(form) + 60]}"
            for place, text in self.written.items()
            for name, known in forms.items()
            for form in known
            if form in text
        ]


def _string(text: bytes) -> bytes:
    """A literal of HPACK, without Huffman coding; up to 16,510 bytes."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest = len(text) - 127
    return bytes([127, rest & 127 | 128, rest >> 7]) + text


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def raw_call(address: str, headers: list[tuple[bytes, bytes]], body: bytes = b"\0\0\0\0\0") -> None:
    """Send one call byte by byte, as no library would, and wait for an answer or the end of the connection."""
    host, _, port = address.rpartition(":")
    block = b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.settimeout(1)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        connection.sendall(_frame(1, 4, 1, block) + _frame(0, 1, 1, body))
        answered = b""
        try:
            # Frames of type 1 (headers), 3 (reset) or 7 (go away) end the wait; settings and pings don't.
            while True:
                received = connection.recv(65_536)
                answered += received
                if not received or any(kind in (1, 3, 7) for kind in _kinds(answered)):
                    return
        except (TimeoutError, ConnectionError):
            return


def _kinds(received: bytes) -> Iterator[int]:
    while len(received) >= 9:
        yield received[3]
        received = received[9 + int.from_bytes(received[:3], "big") :]


def malformed(credentials: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
    """Calls that break the rules of HTTP/2 or of gRPC in one place each, with credentials."""
    good = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/anabranch.v1.ChangeService/Get",
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"authorization": b"Bearer " + credentials,
    }
    yield list(good.items())
    for name in (b":method", b":scheme", b":path", b":authority", b"content-type", b"te"):
        yield [(key, value) for key, value in good.items() if key != name]
        yield [(key, b"nonsense" if key == name else value) for key, value in good.items()]
        yield [(key, b"bad\x01\xff" if key == name else value) for key, value in good.items()]
    others = [(key, value) for key, value in good.items() if key != b"authorization"]
    for end in (b"\xff\xfe", b"\n", b"\0", b"\x01", b"\r\nx: y", b" " * 200):
        yield [*others, (b"authorization", b"Bearer " + credentials + end)]
    yield [*good.items(), (b"authorization", b"Bearer " + credentials)]
    yield [*good.items(), (b"Authorization", b"Bearer " + credentials)]
    yield [*good.items(), (b"authorization-bin", b"Bearer " + credentials)]
    yield [*good.items(), (b"x y", b"Bearer " + credentials)]
    yield [*good.items(), (b"", b"Bearer " + credentials)]
    yield [*good.items(), (b"grpc-timeout", b"Bearer " + credentials)]
    yield [*good.items(), (b"grpc-encoding", b"Bearer " + credentials)]
    yield [*good.items(), (b"padding", b"x" * 16_000)]
    yield [(b"authorization", b"Bearer " + credentials), *good.items()]


def _value(content: object) -> value_pb2.Value:
    if isinstance(content, int):
        return value_pb2.Value(int64_value=content)
    return value_pb2.Value(string_value=str(content))


def send(stack: Stack, key: str, table: str, row: Mapping[str, value_pb2.Value | object]) -> str:
    """Send an insert, and return its verdict's status and reason; or the code of the failed call."""
    node = batch_pb2.Node(id=str(ULID()), name="sender")
    batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name="app", node=node, schema_version=1)
    mutation = batch.mutations.add(table=table, type=batch_pb2.MUTATION_TYPE_INSERT, columns=list(row))
    mutation.rows.add(values=[one if isinstance(one, value_pb2.Value) else _value(one) for one in row.values()])
    request = ingest_pb2.SendRequest(
        db_name="app",
        node_state=position_pb2.NodeState(node=node),
        envelopes=[batch_pb2.Envelope(payload=batch.SerializeToString())],
    )
    with grpc.insecure_channel(stack.addresses["ingest"]) as channel:
        answer = ingest_pb2_grpc.IngestServiceStub(channel).Send(request, timeout=3, metadata=bearer(key))
    return str(answer.verdicts[0])


def refusals_of_another(stack: Stack, credentials: list[str]) -> str:
    """The texts that callers get whose calls fail."""
    told = []
    for name, address in stack.addresses.items():
        with grpc.insecure_channel(address) as channel:
            for one in credentials:
                for database in ("app", "nowhere"):
                    request = change_pb2.GetRequest(db_name=database, after=10**9)
                    try:
                        change_pb2_grpc.ChangeServiceStub(channel).Get(request, timeout=5, metadata=bearer(one))
                    except grpc.RpcError as error:
                        told.append(f"{name} {error.details()} {error.trailing_metadata()}")
    return "\n".join(told)


def run_to_its_end(module: str, environment: Mapping[str, str]) -> str:
    """A service that can't start, or not well: what it writes within some seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        env={**os.environ, "ANABRANCH_END_WITH_STDIN": "true", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        lines: list[str] = []
        said = threading.Event()

        def read(output: Any) -> None:
            for line in output:
                lines.append(line)
                said.set()
            said.set()

        reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
        reader.start()
        assert said.wait(30), "it says nothing"
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(5)
    return "".join(lines)


@pytest.mark.timeout(300)
def test_nothing_planted_comes_out(databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.fresh()
    migrate.upgrade(url)
    rig = ResolverRig(url, TABLES, dict.fromkeys(TABLE_NAMES))
    watched = Watched()
    for name, text in {**TEXTS, **{name: str(number).lstrip("-") for name, number in NUMBERS.items()}}.items():
        watched.plant(name, text)
    watched.plant("jwt secret", JWT_SECRET)
    watched.plant("password of the key set", KEY_SET_PASSWORD)
    watched.plant("password", str(conninfo_to_dict(url)["password"]))
    [(seal_key,)] = rig.sql("select seal_key from anabranch.databases")
    watched.plant("seal key", bytes(seal_key).hex())
    with collecting() as (collector, port):
        environment = {
            "ANABRANCH_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "ANABRANCH_METRICS_INTERVAL_MS": "500",
            "ANABRANCH_JWT_HS256_SECRET": JWT_SECRET,
            "ANABRANCH_LOG_LEVEL": "debug",
            # Nothing listens there.
            "ANABRANCH_JWT_JWKS_URL": f"http://user:{KEY_SET_PASSWORD}@127.0.0.1:9/keys?token={KEY_SET_PASSWORD}",
            "ANABRANCH_JWT_LEEWAY_MS": "0",
        }
        with Stack(url, folder=tmp_path, environment=environment) as stack:
            keys = [watched.plant(f"key {name}", stack.new_key(name)) for name in ("sender", "other")]
            watched.plant("admin key", stack.key)
            claims = {"sub": "token", "exp": 4_000_000_000, "anabranch_database": "*", "own": [{"x": CLAIM}]}
            watched.plant("claim", CLAIM)
            token = jwt.encode(claims, JWT_SECRET, "HS256")
            watched.plant("token", token)
            watched.plant("claims", token.split(".")[1])
            watched.plant("signature", token.rpartition(".")[2])
            refused = _refused_tokens(claims)
            for name, one in refused.items():
                watched.plant(f"{name} token", one)
                watched.plant(f"{name} token's signature", one.rpartition(".")[2] or one)
            _break_calls(stack, keys[0], token)
            _break_batches(stack, keys[0])
            _break_captured(rig)
            until(lambda: '"event": "group rolled back"' in stack.log("conflict-resolver"), 30, "no group failed")
            until(lambda: "captured changes are dropped" in stack.log("conflict-resolver"), 30, "nothing was torn")
            credentials = [keys[1], token, keys[0] + "x", token + "x", *refused.values()]
            _let_expire(stack, claims)
            watched.written["answers to another"] = refusals_of_another(stack, credentials)
            for name, address in stack.metrics_addresses.items():
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                    watched.written[f"metrics of {name}"] = answer.read().decode()
            own = [psutil.Process(stack.pid(name)) for name in stack.addresses]
            processes = [*own, *(child for one in own for child in one.children(recursive=True))]
            watched.written["command lines"] = "\n".join(" ".join(one.cmdline()) for one in processes)
        for name in stack.addresses:
            watched.written[f"log of {name}"] = stack.log(name)
    rig.close()
    watched.written["spans and metrics"] = "\n".join(collector.taken)
    assert {"group", "anabranch.v1.IngestService/Send"} <= collector.names
    assert any("exception.message" in one for one in collector.taken), "failures are in the spans"
    assert watched.found() == []
    databases.release(url)


@pytest.mark.timeout(300)
def test_settings_that_are_wrong_do_not_show_what_they_hold(databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.fresh()
    migrate.upgrade(url)
    watched = Watched()
    watched.plant("password", str(conninfo_to_dict(url)["password"]))
    with futures.ThreadPoolExecutor(3) as pool:
        broken = _broken_settings(watched, url, tmp_path)
        written = pool.map(lambda one: run_to_its_end("anabranch_ingest", one), broken.values())
        watched.written.update(zip(broken, written, strict=True))
    assert [name for name, text in watched.written.items() if not text or "Traceback" in text] == []
    assert watched.found() == []
    databases.release(url)


def _break_calls(stack: Stack, key: str, token: str) -> None:
    with futures.ThreadPoolExecutor(16) as pool:
        calls = [
            pool.submit(raw_call, stack.addresses[name], headers)
            for credentials in (key.encode(), token.encode())
            for name in ("ingest", "snapshot")
            for headers in malformed(credentials)
        ]
        good = next(malformed(key.encode()))
        calls.append(pool.submit(raw_call, stack.addresses["ingest"], good, key.encode()))
        for call in calls:
            call.result()


def _refused_tokens(claims: dict[str, Any]) -> dict[str, str]:
    """Tokens with everything that a token is refused for."""
    good = jwt.encode(claims, JWT_SECRET, "HS256")
    head, body, signature = good.split(".")
    elliptic = new_elliptic()[0]
    return {
        "expired": jwt.encode({**claims, "exp": 1_000}, JWT_SECRET, "HS256"),
        "future": jwt.encode({**claims, "nbf": 3_900_000_000}, JWT_SECRET, "HS256"),
        "nobody's": jwt.encode({**claims, "sub": 7}, JWT_SECRET, "HS256"),
        "endless": jwt.encode({**claims, "exp": "never"}, JWT_SECRET, "HS256"),
        "deep": jwt.encode(
            {**claims, "own": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[CLAIM]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]},
            JWT_SECRET,
            "HS256",
        ),
        "of another algorithm": jwt.encode(claims, JWT_SECRET * 2, "HS512"),
        "of another secret": jwt.encode(claims, WRONG_PASSWORD * 2, "HS256"),
        "of a key set": jwt.encode(claims, elliptic, "ES256", {"kid": CLAIM}),
        "unsigned": f"{head}.{body}.",
        "truncated": good[: -len(signature) // 2],
        "oversized": f"{head}.{body * 200}.{signature}",
        "damaged": f"{head[:-2]}.{body}.{signature}",
    }


def _let_expire(stack: Stack, claims: dict[str, Any]) -> None:
    """Streams whose tokens end while they are open."""
    with grpc.insecure_channel(stack.addresses["snapshot"]) as channel:
        token = jwt.encode({**claims, "exp": time.time() + 1}, JWT_SECRET, "HS256")
        stream = change_pb2_grpc.ChangeServiceStub(channel).Subscribe(
            change_pb2.SubscribeRequest(db_name="app"), timeout=30, metadata=bearer(token)
        )
        with pytest.raises(grpc.RpcError, match="expired"):
            for _ in stream:
                pass


def _break_batches(stack: Stack, key: str) -> None:
    age = NUMBERS["age"]
    parts: list[tuple[str, dict[str, object]]] = [
        ("person", {"id": TEXTS["key"], "email": TEXTS["taken"], "age": 20}),
        ("person", {"id": "2", "email": TEXTS["taken"], "age": 20}),
        ("person", {"id": "3", "email": TEXTS["email"], "age": age}),
        ("person", {"id": "4", "born": value_pb2.Value(text_literal=TEXTS["cast"])}),
        ("person", {"id": "5", "price": value_pb2.Value(decimal_value=str(NUMBERS["price"]))}),
        ("person", {"id": "6", "data": value_pb2.Value(json_value="{" + TEXTS["data"])}),
        ("person", {"id": "7", "tag": value_pb2.Value(uuid_value=TEXTS["cast"])}),
        ("person", {"id": "8", "parent": TEXTS["orphan"]}),
        ("person", {"id": "9", "photo": TEXTS["photo"]}),
        ("person", {"id": "10", "photo": value_pb2.Value(bytes_value=TEXTS["photo"].encode()), "age": age}),
        ("person", {"id": "11", "nothing": TEXTS["misfit"]}),
        ("person", {"id": "12", "at": value_pb2.Value(timestamp_us=2**62)}),
        ("fragile", {"id": "1", "note": f"raise {TEXTS['raise']}"}),
        ("fragile", {"id": "2", "note": f"cast {TEXTS['cast']}"}),
        ("fragile", {"id": "3", "note": f"retry {TEXTS['retry']}"}),
    ]
    verdicts = [send(stack, key, table, row) for table, row in parts]
    assert sum("REJECTED" in one for one in verdicts) >= 10, verdicts
    assert "PENDING" in verdicts[-1], "it is tried again and again"


def _break_captured(rig: ResolverRig) -> None:
    text = TEXTS["captured"]
    rig.sql("insert into app.person (id, email, age) values (%s, %s, 30)", [text, text])
    rig.sql("insert into app.stock values (%s, %s)", [text, NUMBERS["stock"]])
    rig.sql(
        f"begin; update app.stock set n = {NUMBERS['stock']} + 1;"
        "update app.stock set n = 5; alter domain app.quantity add check (value >= 0); commit"
    )


def _broken_settings(watched: Watched, url: str, folder: Path) -> dict[str, dict[str, str]]:
    """Settings that are wrong in ways that may show them."""
    watched.plant("wrong password", WRONG_PASSWORD)
    parts = conninfo_to_dict(url)
    where = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
    binary = folder / "secret.bin"
    binary.write_bytes(b"\xff\xfe" + WRONG_PASSWORD.encode())
    return {
        "wrong": {"ANABRANCH_POSTGRES_URL": f"postgresql://postgres:{WRONG_PASSWORD}@{where}"},
        "nowhere": {"ANABRANCH_POSTGRES_URL": f"postgresql://postgres:{WRONG_PASSWORD}@127.0.0.1:1/none"},
        "at": {"ANABRANCH_POSTGRES_URL": f"postgresql://postgres:x@{WRONG_PASSWORD}@{where}"},
        "slash": {"ANABRANCH_POSTGRES_URL": f"postgresql://postgres:x/{WRONG_PASSWORD}@{where}"},
        "port": {"ANABRANCH_POSTGRES_URL": f"postgresql://postgres:{WRONG_PASSWORD}/y@{where}"},
        "percent": {"ANABRANCH_POSTGRES_URL": f"postgresql://postgres:%zz{WRONG_PASSWORD}@{where}"},
        "words": {"ANABRANCH_POSTGRES_URL": f"host=x password=a {WRONG_PASSWORD}"},
        "path": {"ANABRANCH_POSTGRES_URL": url, "ANABRANCH_JWT_HS256_SECRET_FILE": WRONG_PASSWORD},
        "binary": {"ANABRANCH_POSTGRES_URL": url, "ANABRANCH_JWT_HS256_SECRET_FILE": str(binary)},
        "number": {"ANABRANCH_POSTGRES_URL": url, "ANABRANCH_DRAIN_MS": WRONG_PASSWORD},
        "level": {"ANABRANCH_POSTGRES_URL": url, "ANABRANCH_LOG_LEVEL": WRONG_PASSWORD},
        "short": {"ANABRANCH_POSTGRES_URL": url, "ANABRANCH_JWT_HS256_SECRET": WRONG_PASSWORD},
    }
