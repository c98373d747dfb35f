"""Tokens that others sign: their claims, what they are signed with, and key sets."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from anabranch.store import migrate
from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import bearer, failing, get, now_ms, running_echo
from anabranch.v1 import change_pb2, change_pb2_grpc

pytestmark = pytest.mark.xdist_group("runtime-server")  # its processes are shared by its tests
SECRET = "a secret that is long enough for HS256"
REFUSED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
EXPIRED = ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")


@pytest.fixture(scope="module")
def url(databases: TestDatabases) -> str:
    return databases.prepared("runtime-server", prepare)


def prepare(made: str) -> None:
    migrate.upgrade(made)


def claims(**changes: Any) -> dict[str, Any]:
    made = {"sub": "alice", "exp": now_ms() // 1000 + 600, "anabranch_database": "shop", **changes}
    return {name: value for name, value in made.items() if value is not None}


@pytest.fixture(scope="module")
def hs256(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    settings = {
        "ANABRANCH_JWT_HS256_SECRET": SECRET,
        "ANABRANCH_JWT_ISSUER": "us",
        "ANABRANCH_JWT_AUDIENCE": "anabranch",
        "ANABRANCH_JWT_LEEWAY_MS": "0",
    }
    with running_echo(url, tmp_path_factory.mktemp("hs256"), settings) as (_, channel):
        yield channel


def hs256_token(secret: str = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    return jwt.encode(claims(iss="us", aud="anabranch") | changes, secret, algorithm)


def test_a_tokens_subject_is_the_principal(hs256: grpc.Channel) -> None:
    assert get(hs256, hs256_token()).next_page_token == b"alice"
    assert failing(lambda: get(hs256, hs256_token(), db_name="another"))[1] == "PERMISSION_DENIED"
    assert get(hs256, hs256_token(anabranch_database="*"), db_name="another").next_page_token == b"alice"


def test_a_tokens_role_is_the_principals(hs256: grpc.Channel) -> None:
    assert failing(lambda: get(hs256, hs256_token(), behaviour.NEEDS_ADMIN))[1] == "PERMISSION_DENIED"
    token = hs256_token(anabranch_role="admin")
    assert get(hs256, token, behaviour.NEEDS_ADMIN).next_page_token == b"alice"


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "another secret that is long enough for it"},
        {"iss": "them"},
        {"aud": "others"},
        {"sub": ""},
        {"sub": "a\0b"},
        {"sub": "half a pair: \ud800"},
        {"sub": "x" * 1_001},
        {"anabranch_database": ""},
        {"anabranch_database": 7},
        {"anabranch_role": "owner"},
        {"nbf": 4_000_000_000},
        {"exp": "soon"},
        {"algorithm": "HS512"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_token_that_is_not_valid_is_refused(hs256: grpc.Channel, changes: dict[str, Any]) -> None:
    assert failing(lambda: get(hs256, hs256_token(**changes))) == REFUSED


@pytest.mark.parametrize("missing", ["sub", "exp", "anabranch_database"])
def test_a_token_without_a_claim_is_refused(hs256: grpc.Channel, missing: str) -> None:
    content = claims(iss="us", aud="anabranch")
    del content[missing]
    assert failing(lambda: get(hs256, jwt.encode(content, SECRET, "HS256"))) == REFUSED


def test_an_unsigned_token_is_refused(hs256: grpc.Channel) -> None:
    unsigned = jwt.encode(claims(iss="us", aud="anabranch"), None, "none")  # type: ignore[arg-type]
    assert failing(lambda: get(hs256, unsigned)) == REFUSED


def test_an_expired_token_is_told_so_also_when_it_was_good_before(hs256: grpc.Channel) -> None:
    assert failing(lambda: get(hs256, hs256_token(exp=now_ms() // 1000 - 1))) == EXPIRED
    ends_s = now_ms() / 1000 + 1
    token = hs256_token(exp=ends_s)
    assert get(hs256, token).next_page_token == b"alice"
    time.sleep(max(0.0, ends_s - time.time()) + 0.05)
    assert failing(lambda: get(hs256, token)) == EXPIRED


@pytest.mark.slow
def test_an_open_stream_ends_when_its_token_does(hs256: grpc.Channel) -> None:
    ends_s = now_ms() / 1000 + 1.5
    request = change_pb2.SubscribeRequest(db_name="shop", after=behaviour.PAUSES)
    stream = change_pb2_grpc.ChangeServiceStub(hs256).Subscribe(
        request, timeout=30, metadata=bearer(hs256_token(exp=ends_s))
    )
    assert failing(lambda: [None for _ in stream]) == EXPIRED
    assert 0 <= time.time() - ends_s < 2.5


Signers = dict[str, tuple[Any, str]]


@pytest.fixture(scope="module")
def signers() -> Signers:
    return {
        "elliptic": (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        "rsa": (rsa.generate_private_key(65_537, 2_048), "RS256"),
    }


def key_set(signers: Signers) -> str:
    keys = []
    for kid, (private, algorithm) in signers.items():
        public = private.public_key()
        maker = ECAlgorithm if algorithm == "ES256" else RSAAlgorithm
        keys.append({**json.loads(maker.to_jwk(public)), "kid": kid, "alg": algorithm, "use": "sig"})
    return json.dumps({"keys": keys})


def signed(signers: Signers, kid: str, **changes: Any) -> str:
    private, algorithm = signers[kid]
    return jwt.encode(claims(**changes), private, algorithm, {"kid": kid})


@pytest.mark.slow
def test_a_key_set_from_a_file(url: str, tmp_path: Path, signers: Signers) -> None:
    file = tmp_path / "keys.json"
    file.write_text(key_set(signers))
    with running_echo(url, tmp_path, {"ANABRANCH_JWT_JWKS_FILE": str(file)}) as (_, channel):
        for kid in signers:
            assert get(channel, signed(signers, kid)).next_page_token == b"alice"
        strangers: Signers = {"elliptic": (ec.generate_private_key(ec.SECP256R1()), "ES256")}
        assert failing(lambda: get(channel, signed(strangers, "elliptic"))) == REFUSED
        # The public key is known to everybody: it must not do as an HS256 secret.
        public = (
            signers["rsa"][0]
            .public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        forged = hmac_token(public, {"kid": "rsa"})
        assert failing(lambda: get(channel, forged)) == REFUSED
        # Nor does one key's token pass under another's name, with that one's algorithm.
        private, algorithm = signers["elliptic"]
        crossed = jwt.encode(claims(), private, algorithm, {"kid": "rsa"})
        assert failing(lambda: get(channel, crossed)) == REFUSED


def hmac_token(secret: bytes, header: dict[str, str]) -> str:
    """An HS256 token made by hand, since PyJWT itself refuses a public key as secret."""
    import base64
    import hmac

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    signed_part = ".".join(part(json.dumps(p).encode()) for p in ({"alg": "HS256", **header}, claims()))
    return f"{signed_part}.{part(hmac.digest(secret, signed_part.encode(), 'sha256'))}"


class KeySetServer:
    """Serves a key set that can be replaced, on loopback, and counts who asks."""

    def __init__(self) -> None:
        self.content = ""
        self.asked = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(outer.content.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def __enter__(self) -> KeySetServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.slow
def test_a_key_set_from_a_url_follows_a_rotation(url: str, tmp_path: Path, signers: Signers) -> None:
    with KeySetServer() as keys:
        keys.content = key_set({"elliptic": signers["elliptic"]})
        with running_echo(url, tmp_path, {"ANABRANCH_JWT_JWKS_URL": keys.url}) as (_, channel):
            for _ in range(20):
                assert get(channel, signed(signers, "elliptic")).next_page_token == b"alice"
            assert keys.asked == 1, "the set is kept"
            for number in range(20):
                assert failing(lambda n=number: get(channel, signed(signers, "rsa", sub=f"x{n}"))) == REFUSED  # type: ignore[misc]
            assert keys.asked == 1, "unknown keys don't have it asked for again and again"
            keys.content = key_set({"rsa": signers["rsa"]})
            deadline = time.monotonic() + 15
            while True:
                try:
                    answer = get(channel, signed(signers, "rsa"))
                    break
                except grpc.RpcError:
                    assert time.monotonic() < deadline, "the new set was not noticed"
                    time.sleep(0.2)
            assert answer.next_page_token == b"alice"
            assert failing(lambda: get(channel, signed(signers, "elliptic"))) == REFUSED, "a withdrawn key"


@pytest.mark.slow
def test_no_key_set_is_no_verdict_on_the_token(url: str, tmp_path: Path, signers: Signers) -> None:
    with running_echo(url, tmp_path, {"ANABRANCH_JWT_JWKS_URL": "http://127.0.0.1:9/keys"}) as (_, channel):
        assert failing(lambda: get(channel, signed(signers, "rsa"))) == ("UNAVAILABLE", "UNAVAILABLE")
