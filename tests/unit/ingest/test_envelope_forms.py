"""Ingest checks a batch by itself: every refusal, and that a batch in form goes through untouched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from ulid import ULID

from anabranch import limits
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2
from anabranch.wire.envelopes import Assembly, Received, least_id, receive
from anabranch.wire.ulids import is_ulid

DB = "flights"
ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
EARLIER = "01ARZ3NDEKTSV4RRFFQ69G5FAA"
NODE = "01ARZ3NDEKTSV4RRFFQ69G5FAX"
Spoil = Callable[[batch_pb2.DbMutationBatch], object]


def batch(spoil: Spoil | None = None) -> batch_pb2.DbMutationBatch:
    made = batch_pb2.DbMutationBatch(id=ID, db_name=DB, node=batch_pb2.Node(id=NODE, name="a"), schema_version=1)
    mutation = made.mutations.add(table="t", type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "n"])
    mutation.rows.add(values=[value_pb2.Value(string_value="x"), value_pb2.Value(int64_value=1)])
    if spoil is not None:
        spoil(made)
    return made


def received(spoil: Spoil | None = None, *, basis: int = 0, prev: str = "", oldest: str = "") -> Received:
    return receive(batch(spoil).SerializeToString(), basis, prev, DB, oldest)


def more_rows(made: batch_pb2.DbMutationBatch, count: int, *, others: int = 0) -> None:
    row = made.mutations[0].rows[0]
    del made.mutations[0].rows[:]
    made.mutations[0].rows.extend([row] * count)
    made.mutations.extend([batch().mutations[0]] * others)


def more_columns(made: batch_pb2.DbMutationBatch, count: int) -> None:
    made.mutations[0].columns[:] = [f"c{n}" for n in range(count)]
    del made.mutations[0].rows[0].values[:]
    made.mutations[0].rows[0].values.extend([value_pb2.Value(int64_value=1)] * count)


def test_what_is_in_form_goes_through_untouched() -> None:
    payload = batch().SerializeToString()
    found = receive(payload, 7, EARLIER, DB, "")
    assert found.batch_id == ID
    assert found.payload is payload
    assert found.payload_sha256 == hashlib.sha256(payload).digest()
    assert (found.basis, found.prev, found.refusal) == (7, EARLIER, None)


REFUSALS: list[tuple[str, Spoil, int]] = [
    ("another database", lambda b: setattr(b, "db_name", "other"), errors_pb2.REASON_WRONG_DATABASE),
    ("no database", lambda b: b.ClearField("db_name"), errors_pb2.REASON_WRONG_DATABASE),
    ("no node", lambda b: b.ClearField("node"), errors_pb2.REASON_INVALID_ID),
    ("node in lower case", lambda b: setattr(b.node, "id", NODE.lower()), errors_pb2.REASON_INVALID_ID),
    ("no mutation", lambda b: b.ClearField("mutations"), errors_pb2.REASON_EMPTY),
    ("no row", lambda b: b.mutations[0].ClearField("rows"), errors_pb2.REASON_EMPTY),
    ("no column", lambda b: b.mutations[0].ClearField("columns"), errors_pb2.REASON_EMPTY),
    ("no type", lambda b: b.mutations[0].ClearField("type"), errors_pb2.REASON_MALFORMED),
    ("a type of the future", lambda b: setattr(b.mutations[0], "type", 9), errors_pb2.REASON_MALFORMED),
    ("a value too few", lambda b: b.mutations[0].rows[0].values.pop(), errors_pb2.REASON_MALFORMED),
    ("a value too many", lambda b: b.mutations[0].rows[0].values.add(), errors_pb2.REASON_MALFORMED),
    ("a row without values", lambda b: b.mutations[0].rows.add(), errors_pb2.REASON_MALFORMED),
    (
        "a second mutation that is not in form",
        lambda b: b.mutations.add(table="t", type=batch_pb2.MUTATION_TYPE_UPDATE, columns=["id"]),
        errors_pb2.REASON_EMPTY,
    ),
    (
        "too many mutations",
        lambda b: b.mutations.extend([b.mutations[0]] * limits.MAX_BATCH_MUTATIONS),
        errors_pb2.REASON_LIMIT_EXCEEDED,
    ),
    ("too many rows", lambda b: more_rows(b, limits.MAX_BATCH_ROWS + 1), errors_pb2.REASON_LIMIT_EXCEEDED),
    (
        "too many rows together",
        lambda b: more_rows(b, limits.MAX_BATCH_ROWS, others=1),
        errors_pb2.REASON_LIMIT_EXCEEDED,
    ),
    ("too many columns", lambda b: more_columns(b, limits.MAX_COLUMNS + 1), errors_pb2.REASON_LIMIT_EXCEEDED),
    (
        "a table's name too long",
        lambda b: setattr(b.mutations[0], "table", "t" * (limits.MAX_NAME_BYTES + 1)),
        errors_pb2.REASON_LIMIT_EXCEEDED,
    ),
    (
        "a column's name with too many bytes",
        lambda b: b.mutations[0].columns.__setitem__(1, "é" * 32),
        errors_pb2.REASON_LIMIT_EXCEEDED,
    ),
    (
        "a value too large",
        lambda b: setattr(b.mutations[0].rows[0].values[0], "string_value", "x" * (limits.MAX_VALUE_BYTES + 1)),
        errors_pb2.REASON_LIMIT_EXCEEDED,
    ),
    (
        "too many bytes",
        lambda b: setattr(b.mutations[0].rows[0].values[0], "string_value", "x" * limits.MAX_BATCH_BYTES),
        errors_pb2.REASON_LIMIT_EXCEEDED,
    ),
]


@pytest.mark.parametrize(("spoil", "reason"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_a_batch_that_is_not_in_form_is_refused_under_its_id(spoil: Spoil, reason: int) -> None:
    payload = batch(spoil).SerializeToString()
    found = receive(payload, 0, "", DB, "")
    assert found.refusal is not None
    assert (found.refusal[0], found.batch_id) == (reason, ID)
    assert found.payload == b"", "nobody reads it any more"
    assert found.payload_sha256 == hashlib.sha256(payload).digest()
    assert "\0" not in found.refusal[1]
    assert len(found.refusal[1]) < 200


ALLOWED: list[tuple[str, Spoil]] = [
    ("as many mutations as may be", lambda b: b.mutations.extend([b.mutations[0]] * (limits.MAX_BATCH_MUTATIONS - 1))),
    ("as many rows as may be", lambda b: more_rows(b, limits.MAX_BATCH_ROWS)),
    ("as many columns as may be", lambda b: more_columns(b, limits.MAX_COLUMNS)),
    ("as long a name as may be", lambda b: setattr(b.mutations[0], "table", "t" * limits.MAX_NAME_BYTES)),
    (
        "as large a value as may be",
        lambda b: setattr(b.mutations[0].rows[0].values[0], "string_value", "x" * (limits.MAX_VALUE_BYTES - 10)),
    ),
    ("a value that is not given", lambda b: b.mutations[0].rows[0].values[1].Clear()),
    ("columns that nobody knows", lambda b: b.mutations[0].columns.__setitem__(1, 'q"\0q')),
]


@pytest.mark.parametrize("spoil", [c[1] for c in ALLOWED], ids=[c[0] for c in ALLOWED])
def test_a_batch_in_form_is_not_refused(spoil: Spoil) -> None:
    assert received(spoil).refusal is None


@pytest.mark.parametrize(
    ("basis", "prev", "reason"),
    [
        (-1, "", errors_pb2.REASON_MALFORMED),
        (0, "x", errors_pb2.REASON_INVALID_ID),
        (0, EARLIER.lower(), errors_pb2.REASON_INVALID_ID),
        (0, ID, errors_pb2.REASON_INVALID_ID),
        (0, NODE, errors_pb2.REASON_INVALID_ID),
    ],
)
def test_what_travels_beside_must_be_in_form_as_well(basis: int, prev: str, reason: int) -> None:
    found = received(basis=basis, prev=prev)
    assert found.refusal is not None
    assert found.refusal[0] == reason
    assert (found.basis, found.prev) == (0, "")


@pytest.mark.parametrize("batch_id", ["", "x", ID.lower(), ID[:-1], ID + "0", "8" + ID[1:], ID[:-1] + "U", ID + "\n"])
def test_an_id_that_is_no_ulid_has_no_place(batch_id: str) -> None:
    found = received(lambda b: setattr(b, "id", batch_id))
    assert found.refusal is not None
    assert found.refusal[0] == errors_pb2.REASON_INVALID_ID
    assert (found.batch_id, found.shown_id) == ("", batch_id)


def test_a_monstrous_id_is_shown_cut_short() -> None:
    assert len(received(lambda b: setattr(b, "id", "x" * 100_000)).shown_id) < 100


def test_a_damaged_payload_keeps_its_place_where_its_id_can_be_read() -> None:
    payload = batch().SerializeToString()
    found = receive(payload[:-1], 0, "", DB, "")
    assert found.refusal is not None
    assert (found.batch_id, found.refusal[0]) == (ID, errors_pb2.REASON_MALFORMED)
    for damaged in (b"\xff", payload[1:], b"\x0a\x1a" + ID.encode()[:10], b"\x0a\x1a" + ID.lower().encode() + b"\xff"):
        found = receive(damaged, 0, "", DB, "")
        assert found.refusal is not None
        assert (found.batch_id, found.refusal[0]) == ("", errors_pb2.REASON_MALFORMED)


def test_text_that_is_no_utf8_is_malformed() -> None:
    payload = batch(lambda b: setattr(b.mutations[0], "table", "tttt")).SerializeToString()
    found = receive(payload.replace(b"tttt", b"t\xff\xfet"), 0, "", DB, "")
    assert found.refusal is not None
    assert (found.batch_id, found.refusal[0]) == (ID, errors_pb2.REASON_MALFORMED)


def test_what_is_older_than_verdicts_are_kept_is_expired() -> None:
    made_ms = int(ULID.from_str(ID).milliseconds)
    assert received(oldest=least_id(made_ms)).refusal is None
    found = received(oldest=least_id(made_ms + 1))
    assert found.refusal is not None
    assert (found.refusal[0], found.batch_id) == (errors_pb2.REASON_EXPIRED, ID)


def test_the_least_id_of_a_time() -> None:
    for time_ms in (0, 1, 1_700_000_000_000, 2**48 - 1):
        assert least_id(time_ms) <= str(ULID.from_bytes(time_ms.to_bytes(6, "big") + bytes(10)))
        assert least_id(time_ms) + "0" * 16 == str(ULID.from_bytes(time_ms.to_bytes(6, "big") + bytes(10)))
    assert least_id(-5) == "0" * 10


@pytest.mark.parametrize("size", [1, 7, 28, 1000])
def test_parts_make_the_same_as_the_whole(size: int) -> None:
    payload = batch().SerializeToString()
    parts = [payload[start : start + size] for start in range(0, len(payload), size)]
    assembly = Assembly(batch_pb2.Envelope(payload=parts[0], basis=3, prev=EARLIER))
    for part in parts[1:]:
        assembly.add(part)
    found, whole = assembly.receive(DB, ""), receive(payload, 3, EARLIER, DB, "")
    for name in ("batch_id", "payload", "payload_sha256", "basis", "prev", "refusal"):
        assert getattr(found, name) == getattr(whole, name)


def test_parts_above_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 1_000)
    payload = batch(
        lambda b: setattr(b.mutations[0].rows[0].values[0], "string_value", "x" * 5_000)
    ).SerializeToString()
    assembly = Assembly(batch_pb2.Envelope(payload=payload[:10]))
    for start in range(10, len(payload), 500):
        assembly.add(payload[start : start + 500])
    assert sum(map(len, assembly._parts)) == assembly.kept == 0
    found = assembly.receive(DB, "")
    assert found.refusal is not None
    assert (found.batch_id, found.refusal[0]) == (ID, errors_pb2.REASON_LIMIT_EXCEEDED)
    assert found.payload_sha256 == hashlib.sha256(payload).digest()


def test_canonical_ulids() -> None:
    for _ in range(100):
        assert is_ulid(str(ULID()))
