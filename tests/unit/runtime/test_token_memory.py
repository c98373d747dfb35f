"""The memory of a verifier is bounded, and holds of tokens what they said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jwt
import pytest

from anabranch.clock import Clock
from anabranch.runtime.calls.streams import Streams
from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.credentials import tokens
from anabranch.runtime.credentials.auth import Identity
from anabranch.runtime.credentials.claims import MAX_CLAIM_DEPTH, MAX_CLAIM_VALUES, Claims
from anabranch.runtime.credentials.key_set_text import KeySetError, fetch, read
from anabranch.runtime.credentials.principal import Principal
from anabranch.runtime.credentials.tokens import MAX_TOKEN_BYTES, TokenVerifier
from anabranch.runtime.errors import CallError
from anabranch.testkit.key_sets import claims, entry, key_set, nested, new_elliptic, new_signers, signed
from anabranch.v1 import errors_pb2

SECRET = "a secret that is long enough for HS256"
TEAMS = [f"t{number}" for number in range(MAX_CLAIM_VALUES + 1)]
"""One more than a claim may have."""


def verifier(**more: Any) -> TokenVerifier:
    settings = ServiceSettings(postgres_url="postgresql://h/d", jwt_hs256_secret=SECRET, **more)  # type: ignore[arg-type]
    return TokenVerifier(settings, Clock())


def token(**changes: Any) -> str:
    return jwt.encode(claims(**changes), SECRET, "HS256")


def test_the_claims_of_a_token_are_its_principals() -> None:
    made = verifier()
    sent = claims(groups=["a", "b"], region={"name": "north"})
    found = asyncio.run(made.prove(jwt.encode(sent, SECRET, "HS256"))).principal
    assert (found.subject, found.database) == ("alice", "shop")
    assert found.claims["groups"] == ("a", "b")
    assert found.claims["region"] == Claims({"name": "north"})
    assert set(found.claims) == set(sent)


@pytest.mark.parametrize(
    ("most", "beyond"),
    [(TEAMS[:-1], TEAMS), (nested(MAX_CLAIM_DEPTH), nested(MAX_CLAIM_DEPTH + 1))],
    ids=["values", "depth"],
)
def test_a_token_that_is_not_too_long_reaches_the_limits_of_claims(most: list[Any], beyond: list[Any]) -> None:
    made = verifier()
    assert asyncio.run(made.prove(token(teams=most))).principal.claims["teams"]
    sent = token(teams=beyond)
    assert len(sent) < MAX_TOKEN_BYTES
    with pytest.raises(CallError, match=r"claim .* more than") as caught:
        asyncio.run(made.prove(sent))
    assert caught.value.reason == errors_pb2.REASON_UNAUTHENTICATED


def test_remembered_tokens_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = verifier()
    monkeypatch.setattr(tokens, "KNOWN_MAX_BYTES", 20_000)

    async def use() -> None:
        for number in range(30):
            sent = token(sub=f"s{number}", x="a" * 3_000)
            for _ in range(2):
                assert (await made.prove(sent)).principal.subject == f"s{number}"
            assert made._known_bytes == sum(proof.size for proof in made._known.values()) <= 20_000

    asyncio.run(use())
    assert made._known


def test_a_stream_ends_with_its_principal_and_also_one_in_a_far_year_is_timed() -> None:
    async def outcome(expires_ms: int) -> str | None:
        streams = Streams(10, asyncio.Event(), Clock())
        identity = Identity(Principal("alice", "device", "shop", expires_ms), None)

        async def serve() -> str | None:
            stream = streams.add("/x", identity)
            try:
                await asyncio.sleep(0.3)
            except asyncio.CancelledError:
                assert stream.failure is not None
                assert stream.failure.reason == errors_pb2.REASON_CREDENTIALS_EXPIRED
                return "ended"
            finally:
                streams.remove(stream)
                assert stream.expiry is None or stream.expiry.cancelled() or stream.failure is not None
            return None

        return await asyncio.create_task(serve())

    now_ms = Clock().now_ms()
    assert asyncio.run(outcome(now_ms + 100)) == "ended"
    assert asyncio.run(outcome(now_ms - 100)) == "ended"
    assert asyncio.run(outcome(10**300)) is None


def test_a_set_of_which_nothing_is_of_use_is_a_set() -> None:
    assert read(b'{"keys": []}').keys == {}
    found = read(json.dumps({"keys": [{"kty": "oct", "k": "AAAA"}, {"kty": "oct", "k": "AAAA"}, 1]}).encode())
    assert found.keys == {}
    assert found.left_out == {"another kind": 2, "no object": 1}


def test_a_private_key_and_an_id_given_twice_are_left_out() -> None:
    signers = new_signers()
    private = {**entry(signers, "rsa"), "d": "AQAB", "kid": "private"}
    found = read(key_set(signers, private, entry(signers, "rsa")).encode())
    assert set(found.keys) == {("rsa", "RS256"), ("elliptic", "ES256")}
    assert found.left_out == {"private": 1, "id given twice": 1}


def test_an_address_is_in_no_message(tmp_path: Path) -> None:
    planted = "planted-7f3a9"
    for url in (
        f"http://user:{planted}@127.0.0.1:9/keys",
        f"http://127.0.0.1:9/keys?token={planted}",
        f"http://127.0.0.1:{planted}/keys",
        f"http://127.0.0.1:9/ {planted}",
        f"file:///{planted}",
        planted,
    ):
        with pytest.raises(KeySetError) as caught:
            fetch(None, url)
        assert caught.value.why == "unreachable"
        assert planted not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(KeySetError):
        fetch(tmp_path / planted, None)


def test_an_unknown_key_id_has_the_set_read_once_for_all_that_name_one(tmp_path: Path) -> None:
    """And not again for a while: who sends made-up ids can't have the source asked by each."""
    reads = 0

    async def ask(file: Path) -> set[int]:
        nonlocal reads
        made = verifier(jwt_jwks_file=file)
        assert made.key_set is not None
        fetched = made.key_set._fetched

        async def counted() -> Any:
            nonlocal reads
            reads += 1
            return await fetched()

        made.key_set._fetched = counted  # type: ignore[method-assign]
        sent = [signed({"unknown": new_elliptic()}, "unknown") for _ in range(50)]
        found = await asyncio.gather(*(made.prove(one) for one in sent), return_exceptions=True)
        found += await asyncio.gather(*(made.prove(one) for one in sent), return_exceptions=True)
        return {error.reason for error in found if isinstance(error, CallError)}

    file = tmp_path / "keys.json"
    file.write_text(key_set({"elliptic": new_signers()["elliptic"]}))
    assert asyncio.run(ask(file)) == {errors_pb2.REASON_UNAUTHENTICATED}
    assert reads == 1
