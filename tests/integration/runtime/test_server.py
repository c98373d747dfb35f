"""A server's life and its neighbours: settings, TLS, readiness with Postgres, traces."""

from __future__ import annotations

import datetime
import ipaddress
import json
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.runtime.health import probe
from anabranch.store import migrate
from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import Echo, bearer, echo_service, failing, get, running_echo
from anabranch.testkit.waiting import until

pytestmark = pytest.mark.xdist_group("runtime-server")  # its database is shared by its tests
REFUSED = ("UNAUTHENTICATED", "UNAUTHENTICATED")


class Authority:
    """A certificate authority of one's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority for tests")])
        self.certificate = self._sign(self._name, self._key.public_key(), authority=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(self.pem)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Files with a certificate for ``name`` and 127.0.0.1, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), authority=False)
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@pytest.mark.slow
def test_a_certificate_is_renewed_while_it_runs(url: str, tmp_path: Path) -> None:
    """Connections that are there stay, new ones get the new certificate; one that can't be read changes nothing."""
    (tmp_path / "next").mkdir()
    before, after = Authority(tmp_path), Authority(tmp_path / "next")
    cert, key = before.issue("server")
    settings = {"ANABRANCH_TLS_CERT_FILE": str(cert), "ANABRANCH_TLS_KEY_FILE": str(key)}
    with echo_service(url, tmp_path, settings, grpc.ssl_channel_credentials(before.pem)) as echo:
        echo.wait_ready()
        api_key = echo.new_key("alice")

        def takes(authority: Authority) -> bool:
            with grpc.secure_channel(echo.address, grpc.ssl_channel_credentials(authority.pem)) as channel:
                try:
                    return get(channel, api_key).next_page_token == b"alice"
                except grpc.RpcError:
                    return False

        with echo.channel() as open_before:
            assert get(open_before, api_key).next_page_token == b"alice"
            new_cert, new_key = after.issue("server")
            cert.write_bytes(b"no certificate")
            until(lambda: takes(before) and "read anew" in echo.child.log_tail(), 30, "it was not looked at")
            new_cert.replace(cert)
            new_key.replace(key)
            until(lambda: takes(after), 30, "the new certificate is not shown")
            assert not takes(before)
            assert get(open_before, api_key).next_page_token == b"alice"


def _probe_program(address: str, ca_file: Path, *more: str) -> tuple[int, str]:
    """The probe that the chart runs where services speak TLS: exit code and what it prints."""
    arguments = [sys.executable, "-m", "anabranch.runtime.health", address, "--ca-file", str(ca_file), *more]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
def test_tls(url: str, tmp_path: Path, mutual: bool) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    settings = {"ANABRANCH_TLS_CERT_FILE": str(cert), "ANABRANCH_TLS_KEY_FILE": str(key)}
    client: dict[str, bytes] = {}
    if mutual:
        settings["ANABRANCH_TLS_CLIENT_CA_FILE"] = str(authority.file)
        own_cert, own_key = authority.issue("client")
        client = {"private_key": own_key.read_bytes(), "certificate_chain": own_cert.read_bytes()}
    credentials = grpc.ssl_channel_credentials(authority.pem, **client)
    with echo_service(url, tmp_path, settings, credentials) as echo, echo.channel() as channel:
        echo.wait_ready()
        api_key = echo.new_key("alice")
        assert get(channel, api_key).next_page_token == b"alice"
        assert probe(echo.address, 2.0) == "UNREACHABLE", "it speaks no plaintext"
        if not mutual:
            assert _probe_program(echo.address, authority.file) == (0, "SERVING")
            other_name = ("--server-name", "gate.example")
            assert _probe_program(echo.address, authority.file, *other_name) == (1, "UNREACHABLE")
            assert _probe_program(echo.address, authority.file, "--alive") == (0, "SERVING")
            assert _probe_program(echo.address, authority.file, "--alive", *other_name) == (1, "UNREACHABLE")
        (tmp_path / "other").mkdir()
        stranger = grpc.ssl_channel_credentials(Authority(tmp_path / "other").pem)
        refused = [stranger, grpc.ssl_channel_credentials(authority.pem)] if mutual else [stranger]
        for wrong in refused:
            with grpc.secure_channel(echo.address, wrong) as other, pytest.raises(grpc.RpcError) as caught:
                get(other, api_key)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ANABRANCH_LISTEN_ADDRESS": "0.0.0.0:7401"}, "ANABRANCH_ALLOW_PLAINTEXT_BEYOND_LOOPBACK"),
        ({"ANABRANCH_LISTEN_ADDRESS": "example.org:7401"}, "ANABRANCH_ALLOW_PLAINTEXT_BEYOND_LOOPBACK"),
        ({"ANABRANCH_TLS_CERT_FILE": "/no/such/file"}, "ANABRANCH_TLS_KEY_FILE"),
        ({"ANABRANCH_JWT_HS256_SECRET": "short"}, "ANABRANCH_JWT_HS256_SECRET"),
        ({"ANABRANCH_POSTGRES_URL": ""}, "ANABRANCH_POSTGRES_URL"),
        ({"ANABRANCH_LISTEN_ADDRESS": "nonsense"}, "ANABRANCH_LISTEN_ADDRESS"),
    ],
    ids=["all-addresses", "a-name", "half-of-tls", "short-secret", "no-postgres", "no-address"],
)
def test_settings_that_do_not_fit_end_it_with_one_line(
    url: str, tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    with echo_service(url, tmp_path, settings) as echo:
        echo.child.wait_died(0, 10)
        (line,) = echo.child.log_tail().splitlines()
        assert told in line
        assert line.startswith("echo: ")
        assert "short" not in line or told != "ANABRANCH_JWT_HS256_SECRET" or "shorter" in line


@pytest.mark.slow
def test_a_port_that_is_taken_ends_it(url: str, tmp_path: Path) -> None:
    with running_echo(url, tmp_path / "first", {}) as (first, _):
        with echo_service(url, tmp_path / "second", {"ANABRANCH_LISTEN_ADDRESS": first.address}) as second:
            second.child.wait_died(0, 20)
            assert f"can't listen on {first.address}" in second.child.log_tail()
        assert probe(first.address, 2.0) == "SERVING"


@pytest.mark.slow
def test_beyond_loopback_reflection_needs_credentials(url: str, tmp_path: Path) -> None:
    """With TLS it may listen everywhere; the test itself calls over loopback."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    credentials = grpc.ssl_channel_credentials(authority.pem)
    settings = {"ANABRANCH_TLS_CERT_FILE": str(cert), "ANABRANCH_TLS_KEY_FILE": str(key)}
    with echo_service(url, tmp_path, settings, credentials) as echo:
        port = echo.address.rpartition(":")[2]
    settings["ANABRANCH_LISTEN_ADDRESS"] = f"0.0.0.0:{port}"
    with echo_service(url, tmp_path, settings, credentials) as echo:
        echo.address = f"127.0.0.1:{port}"
        echo.wait_ready()
        with echo.channel() as channel:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
            requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
            assert failing(lambda: list(stub.ServerReflectionInfo(iter(requests), timeout=5))) == REFUSED
            allowed = stub.ServerReflectionInfo(iter(requests), timeout=5, metadata=bearer(echo.new_key("alice")))
            assert next(allowed).list_services_response.service


@pytest.mark.slow
def test_it_waits_for_the_schema(databases: TestDatabases, tmp_path: Path) -> None:
    fresh = databases.fresh()
    with echo_service(fresh, tmp_path) as echo:
        assert probe(echo.address, 1.0) == "UNREACHABLE"
        time.sleep(1.0)
        assert probe(echo.address, 1.0) == "UNREACHABLE", "no schema, no service"
        migrate.upgrade(fresh)
        echo.wait_ready(10)
    databases.release(fresh)


@pytest.mark.slow
def test_readiness_follows_postgres(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres") as postgres:
        migrate.upgrade(postgres.url)
        with running_echo(postgres.url, tmp_path, {}) as (echo, channel):
            key = echo.new_key("alice")
            get(channel, key, behaviour.ASKS_POSTGRES)
            postgres.stop("immediate")
            wait_for_state(echo, "NOT_SERVING")
            unavailable = ("UNAVAILABLE", "UNAVAILABLE")
            assert failing(lambda: get(channel, key, behaviour.ASKS_POSTGRES)) == unavailable
            # Whoever can't be looked up is not called invalid.
            assert failing(lambda: get(channel, f"ak_0123456789abcdef_{'0' * 64}")) == unavailable
            postgres.start()
            wait_for_state(echo, "SERVING")
            assert get(channel, key, behaviour.ASKS_POSTGRES).next_page_token == b"alice"


def wait_for_state(echo: Echo, state: str) -> None:
    until(lambda: probe(echo.address, 2.0) == state, 20, f"not {state}")


PARENT = """
import sys
from pathlib import Path
from anabranch.testkit.echo import echo_service
with echo_service(sys.argv[1], Path(sys.argv[2])) as echo:
    echo.wait_ready()
    print(echo.child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_it_ends_with_the_process_that_started_it(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, url, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        service = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait(5)
        service.wait(10)
    assert "what started this process is gone" in (tmp_path / "echo.log").read_text()


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans in, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.came = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.came.set()
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.mark.slow
def test_a_trace_goes_on_through_the_service(url: str, tmp_path: Path) -> None:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    settings = {"ANABRANCH_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    with running_echo(url, tmp_path, settings) as (echo, channel):
        key = echo.new_key("alice")
        answer = get(channel, key, 0, ("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"))
        with pytest.raises(grpc.RpcError) as caught:
            get(channel, key, behaviour.RAISES, ("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"))
        assert trace_id in str(caught.value.details()), "the fault is found by its trace"
        handed_on = answer.state.settled.epoch.split("-")
        assert handed_on[1] == trace_id
        lines = [json.loads(line) for line in echo.child.log_tail().splitlines()]
        assert next(line for line in lines if line["event"] == "call failed")["trace_id"] == trace_id
    # Stopping it has sent what was left.
    assert collector.came.wait(5)
    server.stop(0).wait()
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == trace_id}
    assert set(spans) == {f"{behaviour.NAME}/Get", "echo"}
    assert spans["echo"].span_id.hex() == handed_on[2]
    calls = [span for span in collector.spans if span.name == f"{behaviour.NAME}/Get"]
    assert {span.parent_span_id.hex() for span in calls} == {"b7ad6b7169203331"}
    assert spans["echo"].parent_span_id in {span.span_id for span in calls}
