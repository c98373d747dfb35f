"""Tokens that a key set's keys sign: rotations, sources that fail, and keys of other kinds."""

from __future__ import annotations

import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.echo import SUCCESS, Echo, bearer, ending, failing, get, outcome, running_echo, subscribe
from anabranch.testkit.exposition import shown
from anabranch.testkit.key_sets import (
    KeySetServer,
    Signers,
    entry,
    hmac_token,
    key_set,
    new_elliptic,
    new_signers,
    signed,
)
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2, change_pb2_grpc

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("runtime-server")]
REFUSED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
EXPIRED = ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")


@pytest.fixture(scope="module")
def signers() -> Signers:
    return new_signers()


def settings(keys: KeySetServer, reload_ms: int = 300_000) -> dict[str, str]:
    return {"ANABRANCH_JWT_JWKS_URL": keys.url, "ANABRANCH_JWT_JWKS_RELOAD_MS": str(reload_ms)}


def accepted(channel: grpc.Channel, token: str) -> bool:
    return outcome(lambda: get(channel, token)) == SUCCESS


def reads(echo: Echo, result: str) -> float:
    return shown(echo.metrics_address, "anabranch_key_set_reads_total", result=result)


@pytest.mark.parametrize("more", [{}, {"ANABRANCH_JWT_HS256_SECRET": "a secret that is long enough for HS256"}])
def test_a_key_set_from_a_file(url: str, tmp_path: Path, signers: Signers, more: dict[str, str]) -> None:
    file = tmp_path / "keys.json"
    file.write_text(key_set(signers))
    with running_echo(url, tmp_path, {"ANABRANCH_JWT_JWKS_FILE": str(file), **more}) as (_, channel):
        for kid in signers:
            token = signed(signers, kid)
            assert get(channel, token).next_page_token == b"alice"
            assert failing(lambda t=token: get(channel, t, db_name="another"))[1] == "PERMISSION_DENIED"  # type: ignore[misc]
        strangers: Signers = {"elliptic": new_elliptic()}
        assert failing(lambda: get(channel, signed(strangers, "elliptic"))) == REFUSED
        # The public key is known to everybody: it must not do as an HS256 secret, in any of its forms.
        public = signers["rsa"][0].public_key()
        for form in (serialization.PublicFormat.SubjectPublicKeyInfo, serialization.PublicFormat.PKCS1):
            forged = hmac_token(public.public_bytes(serialization.Encoding.PEM, form), {"kid": "rsa"})
            assert failing(lambda t=forged: get(channel, t)) == REFUSED  # type: ignore[misc]
        # Nor does one key's token pass under another's name, with that one's algorithm.
        crossed = signed({"rsa": signers["elliptic"]}, "rsa")
        assert failing(lambda: get(channel, crossed)) == REFUSED


def test_a_key_set_from_a_url_follows_a_rotation(url: str, tmp_path: Path, signers: Signers) -> None:
    with KeySetServer() as keys:
        keys.content = key_set({"elliptic": signers["elliptic"]})
        with running_echo(url, tmp_path, settings(keys)) as (_, channel):
            for _ in range(20):
                assert get(channel, signed(signers, "elliptic")).next_page_token == b"alice"
            assert keys.asked == 1, "the set is kept"
            with futures.ThreadPoolExecutor(20) as pool:
                tokens = [signed(signers, "rsa", sub=f"x{number}") for number in range(40)]
                answers = list(pool.map(lambda token: failing(lambda: get(channel, token)), tokens))
            assert set(answers) == {REFUSED}
            assert keys.asked <= 2, "unknown keys don't have it asked for again and again"
            keys.content = key_set({"rsa": signers["rsa"]})
            until(lambda: accepted(channel, signed(signers, "rsa")), 15, "the new set was not noticed")
            assert failing(lambda: get(channel, signed(signers, "elliptic"))) == REFUSED, "a withdrawn key"


@pytest.mark.parametrize("left", ["another", "none"])
def test_a_removed_key_proves_nothing_after_the_next_reading_and_its_streams_end(
    url: str, tmp_path: Path, signers: Signers, left: str
) -> None:
    """Also where the last key was removed, and where nobody calls meanwhile."""
    with KeySetServer() as keys:
        keys.content = key_set(signers)
        with running_echo(url, tmp_path, settings(keys, 1_000)) as (_, channel):
            token, other = signed(signers, "rsa"), signed(signers, "elliptic")
            doomed, untouched = subscribe(channel, token, behaviour.PAUSES), subscribe(channel, other)
            keys.content = key_set({"elliptic": signers["elliptic"]} if left == "another" else {})
            removed = time.monotonic()
            assert ending(doomed) == EXPIRED
            assert time.monotonic() - removed < 1 + 2
            assert failing(lambda: get(channel, token)) == REFUSED
            if left == "another":
                next(untouched)
                assert get(channel, other).next_page_token == b"alice"


def test_a_key_that_another_one_has_replaced_under_its_id_proves_nothing(
    url: str, tmp_path: Path, signers: Signers
) -> None:
    with KeySetServer() as keys:
        keys.content = key_set({"elliptic": signers["elliptic"]})
        with running_echo(url, tmp_path, settings(keys, 1_000)) as (_, channel):
            token = signed(signers, "elliptic")
            assert get(channel, token).next_page_token == b"alice"
            replaced: Signers = {"elliptic": new_elliptic()}
            keys.content = key_set(replaced)
            until(lambda: not accepted(channel, token), 5)
            assert get(channel, signed(replaced, "elliptic")).next_page_token == b"alice"


def test_no_key_set_is_no_verdict_on_the_token(url: str, tmp_path: Path, signers: Signers) -> None:
    with running_echo(url, tmp_path, {"ANABRANCH_JWT_JWKS_URL": "http://127.0.0.1:9/keys"}) as (echo, channel):
        assert failing(lambda: get(channel, signed(signers, "rsa"))) == ("UNAVAILABLE", "UNAVAILABLE")
        assert reads(echo, "unreachable") > 0


BAD: dict[str, tuple[str | bytes, int, str]] = {
    "gone": ("", 404, "unreachable"),
    "empty": ("", 200, "malformed"),
    "no JSON": ("<html>", 200, "malformed"),
    "a list": ("[]", 200, "malformed"),
    "no list": ('{"keys": {"kty": "RSA"}}', 200, "malformed"),
    "deep": ("[" * 100_000, 200, "malformed"),
    "no UTF-8": (b"\xff\xfe\xff", 200, "malformed"),
    "huge": ("[" + " " * 3_000_000 + "]", 200, "too_large"),
    "many keys": ('{"keys": [' + ",".join(["{}"] * 1_000) + "]}", 200, "too_large"),
}


def test_a_source_that_gives_no_set_is_named_and_the_known_keys_hold(
    url: str, tmp_path: Path, signers: Signers
) -> None:
    with KeySetServer() as keys:
        keys.content = key_set(signers)
        with running_echo(url, tmp_path, settings(keys, 1_000)) as (echo, channel):
            assert get(channel, signed(signers, "rsa")).next_page_token == b"alice"
            for name, (content, status, why) in BAD.items():
                before = reads(echo, why)
                keys.content, keys.status = content, status
                until(lambda r=why, b=before: reads(echo, r) > b, 10, name)  # type: ignore[misc]
                assert get(channel, signed(signers, "rsa")).next_page_token == b"alice", name
            log = echo.child.program.log.read_text()
            assert {f'"why": "{why}"' in log for _, _, why in BAD.values()} == {True}
            keys.content, keys.status = key_set({"rsa": signers["rsa"]}), 200
            until(lambda: not accepted(channel, signed(signers, "elliptic")), 10)


def test_keys_of_other_kinds_prove_nothing_and_harm_no_other(url: str, tmp_path: Path, signers: Signers) -> None:
    secret = "c2VjcmV0LXRoYXQtc3RhbmRzLWluLWEtcHVibGljLXNldA"
    others = [
        {"kty": "oct", "k": secret, "kid": "shared"},
        {"kty": "oct", "k": secret, "kid": "as-rsa", "alg": "RS256"},
        {"kty": "OKP", "crv": "Ed25519", "x": secret, "kid": "ed"},
        {"kty": "RSA", "n": "AQAB" * 100_000, "e": "AQAB", "kid": "long"},
        {"kty": "RSA", "kid": "empty"},
        {**entry(signers, "rsa"), "use": "enc", "kid": "encrypts"},
        {**entry(signers, "rsa"), "alg": "RSA-OAEP", "kid": "encrypts, too"},
        {"kty": ["RSA"], "kid": {"a": 1}},
        7,
        None,
    ]
    with KeySetServer() as keys:
        keys.content = key_set(signers, *others)
        with running_echo(url, tmp_path, settings(keys)) as (echo, channel):
            for kid in signers:
                assert get(channel, signed(signers, kid)).next_page_token == b"alice"
            shared = b"secret-that-stands-in-a-public-set"
            for kid in ("shared", "as-rsa"):
                for algorithm in ("HS256", "RS256", "ES256"):
                    forged = hmac_token(shared, {"kid": kid, "alg": algorithm})
                    assert failing(lambda t=forged: get(channel, t)) == REFUSED  # type: ignore[misc]
            for kid in ("encrypts", "encrypts, too"):
                token = signed({kid: signers["rsa"]}, kid)
                assert failing(lambda t=token: get(channel, t)) == REFUSED  # type: ignore[misc]
            log = echo.child.program.log.read_text()
            assert "keys of the key set are left out" in log
            assert secret not in log


@pytest.mark.parametrize("way", ["silent", "drip"])
def test_nobody_who_needs_no_other_key_waits_for_a_slow_source(
    url: str, tmp_path: Path, signers: Signers, way: str
) -> None:
    with KeySetServer() as keys:
        keys.content = key_set({"rsa": signers["rsa"]})
        with running_echo(url, tmp_path, settings(keys, 1_000)) as (echo, channel):
            get(channel, signed(signers, "rsa"))
            api_key = echo.new_key("bob")
            stub = change_pb2_grpc.ChangeServiceStub(channel)
            if way == "silent":
                keys.held.set()
            else:
                keys.drip_s = 0.5
            asked = keys.asked
            until(lambda: keys.asked > asked, 10)
            # More callers than there are places for calls that are being judged.
            unknown = [
                stub.Get.future(
                    change_pb2.GetRequest(db_name="shop"),
                    timeout=20,
                    metadata=bearer(signed(signers, "elliptic", sub=f"x{number}")),
                )
                for number in range(2_200)
            ]
            longest = 0.0
            for number in range(20):
                started = time.monotonic()
                assert get(channel, signed(signers, "rsa", sub=f"new {number}")).next_page_token
                assert get(channel, api_key).next_page_token == b"bob"
                longest = max(longest, time.monotonic() - started)
            print(f"the longest two calls beside {len(unknown)} that wait took {longest:.3f} s")
            assert longest < 3
            until(lambda: reads(echo, "slow") > 0, 15)
            outcomes = {failing(call.result)[1] for call in unknown}
            assert outcomes <= {"UNAUTHENTICATED", "OVERLOADED"}
            assert "OVERLOADED" in outcomes
            keys.held.clear()
            keys.drip_s = 0.0
            keys.content = key_set(signers)
            until(lambda: accepted(channel, signed(signers, "elliptic")), 20)
