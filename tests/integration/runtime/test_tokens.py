"""Tokens of a shared secret: their claims, what is refused, and when they end. Key sets: ``test_key_sets``."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.echo import bearer, ending, failing, get, now_ms, running_echo, subscribe
from anabranch.testkit.key_sets import claims, nested
from anabranch.v1 import change_pb2, change_pb2_grpc

pytestmark = pytest.mark.xdist_group("runtime-server")  # its processes are shared by its tests
SECRET = "a secret that is long enough for HS256"
REFUSED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
EXPIRED = ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")


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


@pytest.mark.slow
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
    assert ending(stream) == EXPIRED
    assert 0 <= time.time() - ends_s < 1


@pytest.mark.slow
def test_streams_end_at_their_tokens_end_and_the_leeway_and_not_before(url: str, tmp_path: Path) -> None:
    settings = {"ANABRANCH_JWT_HS256_SECRET": SECRET, "ANABRANCH_JWT_LEEWAY_MS": "700"}
    with running_echo(url, tmp_path, settings) as (_, channel):
        begun_s = now_ms() / 1000 + 1
        ended: list[float] = []

        def last(number: int) -> None:
            # All over a second, so that none is only lucky.
            after, ends_s = (0, behaviour.PAUSES)[number % 2], begun_s + number / 20
            token = jwt.encode(claims(exp=ends_s, sub=f"s{number}"), SECRET, "HS256")
            stream = subscribe(channel, token, after)
            assert ending(stream) == EXPIRED
            ended.append(time.time() - ends_s - 0.7)

        with futures.ThreadPoolExecutor(20) as pool:
            list(pool.map(last, range(20)))
    print(f"streams ended {min(ended):.3f} to {max(ended):.3f} s after their tokens and the leeway")
    assert min(ended) >= 0
    assert max(ended) < 0.5


@pytest.mark.parametrize(
    "credentials",
    [
        lambda token: token[: len(token) // 2],
        lambda token: token[:-1],
        lambda token: token.rpartition(".")[0],
        lambda token: token + "A" * 16 * 1024,
        lambda token: _encoded(b"[" * 9_000) + token[token.index(".") :],
        lambda token: _encoded(b'{"alg":["HS256"]}') + token[token.index(".") :],
        lambda token: _encoded(b'{"alg":' + b"9" * 9_000 + b"}") + token[token.index(".") :],
        lambda token: _encoded(b'"HS256"') + token[token.index(".") :],
        lambda token: "..",
    ],
    ids=["half", "cut", "unsigned", "oversized", "deep", "listed", "number", "text", "dots"],
)
def test_what_is_no_token_is_refused(hs256: grpc.Channel, credentials: Callable[[str], str]) -> None:
    assert failing(lambda: get(hs256, credentials(hs256_token()))) == REFUSED


def _encoded(header: bytes) -> str:
    return base64.urlsafe_b64encode(header).rstrip(b"=").decode()


@pytest.mark.parametrize("claim", [{"x": [[[[]]]] * 100}, {"x": {"y": "z"}}], ids=["many", "nested"])
def test_a_token_may_carry_claims_of_its_own(hs256: grpc.Channel, claim: dict[str, Any]) -> None:
    assert get(hs256, hs256_token(**claim)).next_page_token == b"alice"


def test_a_token_with_claims_that_stand_too_deep_is_refused(hs256: grpc.Channel) -> None:
    assert failing(lambda: get(hs256, hs256_token(x=nested(500)))) == REFUSED


def test_credentials_that_are_given_twice_are_refused(hs256: grpc.Channel) -> None:
    good, other = hs256_token(), hs256_token(sub="bob")
    for first, second in ((good, good), (good, other), (good, "nonsense"), ("nonsense", good)):
        more = ("authorization", f"Bearer {second}")
        assert failing(lambda one=first, two=more: get(hs256, one, 0, two)) == REFUSED  # type: ignore[misc]
