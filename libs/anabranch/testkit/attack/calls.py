"""Fuzzed calls of every method of every service, with all kinds of credentials."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from anabranch.runtime.errors import reason_name
from anabranch.testkit.attack.messages import Fuzzer
from anabranch.testkit.attack.phases import Phases
from anabranch.testkit.attack.target import Findings, Target
from anabranch.testkit.ingest_rig import FailedCallError, failed
from anabranch.v1 import change_pb2, errors_pb2, ingest_pb2, resolver_pb2, retention_pb2, snapshot_pb2, verdict_pb2
from anabranch.wire.enum_names import enum_name

CALL_S = 5.0
MOST_ANSWERS = 20
PAUSE_S = 0.02
"""Between two calls of one attacker: a flood without any pause measures the machine and not the services."""

_SERVICES: Mapping[str, Sequence[Any]] = {
    "ingest": (ingest_pb2,),
    "snapshot": (change_pb2, snapshot_pb2),
    "conflict-resolver": (resolver_pb2,),
    "retention-janitor": (retention_pb2,),
}
_JUNK_CREDENTIALS = ("", "Bearer", "Bearer ", "Bearer x", "Basic YTpi", "Bearer ab_" + "0" * 60, "Bearer a.b.c")
_OURS = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Codes that the caller itself has given its call."""


@dataclass(frozen=True)
class Rpc:
    """A method, and the service of the stack that has it."""

    service: str
    method: MethodDescriptor

    @property
    def path(self) -> str:
        """As HTTP/2 carries it."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


RPCS = [
    Rpc(service, method)
    for service, modules in _SERVICES.items()
    for module in modules
    for contract in module.DESCRIPTOR.services_by_name.values()
    for method in contract.methods
]


def fuzz_calls(target: Target, chance: random.Random, stop: Phases, found: Findings) -> None:
    """Call until ``stop``."""
    fuzzer = Fuzzer(chance, target.db_name)
    channels = {service: grpc.insecure_channel(target.addresses[service]) for service in _SERVICES}
    try:
        while not stop.rest(PAUSE_S):
            rpc = chance.choice(RPCS)
            requests = [fuzzer.request(rpc.method.input_type) for _ in range(chance.choice([1, 1, 3]))]
            _call(channels[rpc.service], rpc, requests, _credentials(target, chance), target, found)
    finally:
        for channel in channels.values():
            channel.close()


def _credentials(target: Target, chance: random.Random) -> str | None:
    drawn = chance.random()
    if drawn < 0.5:
        return f"Bearer {target.device_key}"
    if drawn < 0.7:
        return f"Bearer {target.admin_key}"
    if drawn < 0.8:
        return None
    return chance.choice(_JUNK_CREDENTIALS)


def _call(
    channel: grpc.Channel, rpc: Rpc, requests: Sequence[bytes], credentials: str | None, target: Target, found: Findings
) -> None:
    metadata = [] if credentials is None else [("authorization", credentials)]
    # Request and answer stay bytes: stubs can't say what is sent here.
    kind = "stream" if rpc.method.client_streaming else "unary"
    answer_kind = "stream" if rpc.method.server_streaming else "unary"
    call = getattr(channel, f"{kind}_{answer_kind}")(rpc.path, None, None)
    sent: Any = iter(requests) if rpc.method.client_streaming else requests[0]
    try:
        answered = call(sent, timeout=CALL_S, metadata=metadata)
        for answer in _bounded(answered) if rpc.method.server_streaming else [answered]:
            _look_at(rpc, answer, found)
        found.answer(f"{rpc.method.name} OK")
        if credentials not in (f"Bearer {target.device_key}", f"Bearer {target.admin_key}"):
            found.breach("an answer without credentials", f"{rpc.path} with {credentials!r}")
    except grpc.RpcError as error:
        judge(rpc.method.name, _seen(error), requests, found)


def _bounded(answers: Any) -> Iterator[bytes]:
    for number, answer in enumerate(answers):
        yield answer
        if number >= MOST_ANSWERS:
            answers.cancel()
            return


def _seen(error: grpc.RpcError) -> FailedCallError:
    try:
        return failed(error)
    except ValueError:  # Its details did not fit, and the library has put another code in place of ours.
        return FailedCallError(error.code(), "", str(error.details()))


def judge(what: str, error: FailedCallError, requests: Sequence[bytes], found: Findings) -> None:
    """Count a failure; one that is not allowed is a breach: no listed reason, or SERVER_FAULT."""
    if error.reason:
        found.answer(f"{what} {error.reason}")
        if error.reason == "SERVER_FAULT" or f"REASON_{error.reason}" not in set(errors_pb2.Reason.keys()):
            found.breach(f"{what} ended {error.reason}", f"{error.details}; {_shown(requests)}")
    elif error.code in _OURS:
        found.answer(f"{what} {error.code.name}")
    else:
        found.breach(f"{what} ended {error.code.name} without a reason", f"{error.details}; {_shown(requests)}")


def _look_at(rpc: Rpc, answer: bytes, found: Findings) -> None:
    if rpc.service == "ingest":
        for verdict in ingest_pb2.SendResponse.FromString(answer).verdicts:
            judge_verdict("verdict", verdict, found)


def judge_verdict(what: str, verdict: verdict_pb2.Verdict, found: Findings) -> None:
    """Count a verdict; INTERNAL, which stands for a fault of ours, is a breach."""
    status = enum_name(verdict_pb2.VerdictStatus, verdict.status)
    found.answer(f"{what} {status} {reason_name(verdict.reason)}")
    if verdict.reason == errors_pb2.REASON_INTERNAL:
        found.breach(f"{what} INTERNAL", f"{verdict.batch_id}: {verdict.message}")


def _shown(requests: Sequence[bytes]) -> str:
    return ", ".join(f"{len(raw)} bytes, {raw[:2_000].hex()}" for raw in requests)
