"""Messages of the contract for every language: values at their limits, batches, positions, and what carries them.

`conformance.json` holds, for each, its name, its message type, its bytes as hex and its protobuf JSON. A language must
make the same bytes from what it read out of the bytes, and from the JSON; run this file as a program to write it anew.
Every message here is written by protobuf's rule of thumb (fields by number, nothing left over), which the bytes of a
batch need not follow: they are frozen when it is made, and nobody writes them a second time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    errors_pb2,
    ingest_pb2,
    position_pb2,
    snapshot_pb2,
    value_pb2,
    verdict_pb2,
)

FILE = Path(__file__).with_name("conformance.json")
PACKAGE = "anabranch.v1"
LIMITS_ROWS = "rows at their limits"
"""The DbMutation that every language's program sends to the server: an insert into the table ``kinds``."""
NULL = value_pb2.Value(null_value=0)  # type: ignore[arg-type]
NODE = batch_pb2.Node(id="01JDQ0000000000000000000ND", name='gate-12 "\U0001f600" e\u0301')
BATCH_ID = "01JDQ00000000000000000000B"
INT64 = (-(2**63), -(2**53) - 1, -1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1)
DOUBLES = (0.0, -0.0, 5e-324, -1.7976931348623157e308, math.pi, 0.1, math.inf, -math.inf)
JSON_DOUBLES = tuple(d for d in DOUBLES if math.copysign(1.0, d) > 0 or d)
"""Those that every language's JSON keeps."""
TEXTS = ("", "e\u0301 \U0001f600", "NULL", 'q"q\\', "\u0001\t\r\n", "x" * 300, "\uffff\U00010000")
DECIMALS = ("1234567890123456789012345678.0123456789", "1.10", "-0.000", "NaN", "Infinity", "-Infinity")
TIMESTAMPS = (-(2**63), -210866803200000000, -1, 0, 951782400123456, 2**63 - 1)
DAYS = (-(2**31), -2440588, -141438, 0, 19000, 2**31 - 1)
TIMES = (0, 1, 86399999999, 86400000000)
JSON = ("null", '""', '{"a": null, "n": 12345678901234567890}', '[1.0, "\U0001f600"]')
UUID = "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d"
LITERALS = ("1 mon", "[2:3]={1,2}", "294276-12-31 23:59:59.999999+00", "")
BYTES = (b"", b"\x00", bytes(range(256)))


def array(*elements: value_pb2.Value) -> value_pb2.Value:
    """An array_value; one without elements is given all the same."""
    value = value_pb2.Value()
    value.array_value.elements.extend(elements)
    value.array_value.SetInParent()
    return value


def text(content: str) -> value_pb2.Value:
    """A string_value."""
    return value_pb2.Value(string_value=content)


def number(content: int) -> value_pb2.Value:
    """An int64_value."""
    return value_pb2.Value(int64_value=content)


ARMS: dict[str, tuple[Any, ...]] = {
    "bool_value": (False, True),
    "int64_value": INT64,
    "double_value": (*DOUBLES, math.nan),
    "string_value": TEXTS,
    "bytes_value": BYTES,
    "decimal_value": DECIMALS,
    "timestamp_us": TIMESTAMPS,
    "date_days": DAYS,
    "time_us": TIMES,
    "json_value": JSON,
    "uuid_value": (UUID,),
    "text_literal": LITERALS,
}
"""Arm of Value to contents; the arms for NULL and arrays have none of their own."""
KINDS_COLUMNS = ("id", "yes", "n", "x", "t", "b", "d", "ts", "day", "tod", "j", "u", "a", "span")
"""The columns of ``kinds`` that LIMITS_ROWS gives, one of each kind."""


def limits_rows(doubles: Sequence[float] = ARMS["double_value"]) -> batch_pb2.DbMutation:
    """An insert into ``kinds`` that holds every content that Postgres stores as it stands."""
    postgres_texts = [t for t in TEXTS if "\x00" not in t]
    columns: list[list[value_pb2.Value]] = [
        [value_pb2.Value(bool_value=v) for v in ARMS["bool_value"]],
        [number(v) for v in INT64],
        [value_pb2.Value(double_value=v) for v in doubles],
        [text(v) for v in postgres_texts],
        [value_pb2.Value(bytes_value=v) for v in BYTES],
        [value_pb2.Value(decimal_value=v) for v in DECIMALS if v != "-0.000"],
        [value_pb2.Value(timestamp_us=v) for v in TIMESTAMPS],
        [value_pb2.Value(date_days=v) for v in DAYS],
        [value_pb2.Value(time_us=v) for v in TIMES],
        [value_pb2.Value(json_value=v) for v in JSON],
        [value_pb2.Value(uuid_value=UUID)],
        [array(), array(text(""), NULL, text("NULL"), text("a,b")), array(array(text("1"), NULL), array(NULL, NULL))],
        [value_pb2.Value(text_literal="1 mon")],
    ]
    mutation = batch_pb2.DbMutation(
        table="kinds", type=batch_pb2.MUTATION_TYPE_INSERT, columns=KINDS_COLUMNS, undo=batch_pb2.Undo()
    )
    for i in range(max(map(len, columns))):
        values = [column[i] if i < len(column) else NULL for column in columns]
        mutation.rows.add(values=[text(f"row {i}"), *values])
    return mutation


def update() -> batch_pb2.DbMutation:
    """An update that leaves one row's column alone, with what it undoes."""
    return batch_pb2.DbMutation(
        table="m\u00e9mbers",
        type=batch_pb2.MUTATION_TYPE_UPDATE,
        columns=["room", "member", "Zed", "\u00e9"],
        rows=[
            value_pb2.Row(values=[number(-1), text("07"), NULL, value_pb2.Value()]),
            value_pb2.Row(values=[number(2**63 - 1), text(""), text("\U0001f600"), text("x")]),
        ],
        undo=batch_pb2.Undo(
            columns=["Zed", "\u00e9"],
            rows=[value_pb2.Row(values=[text("before"), NULL]), value_pb2.Row(values=[NULL, NULL])],
        ),
    )


def batch() -> batch_pb2.DbMutationBatch:
    """A batch with all three types."""
    delete = batch_pb2.DbMutation(
        table="todo",
        type=batch_pb2.MUTATION_TYPE_DELETE,
        columns=["id"],
        rows=[value_pb2.Row(values=[text(BATCH_ID)])],
        undo=batch_pb2.Undo(
            columns=["id", "title"], rows=[value_pb2.Row(values=[text(BATCH_ID), text("gone \u2603")])]
        ),
    )
    return batch_pb2.DbMutationBatch(
        id=BATCH_ID,
        db_name="shop",
        mutations=[limits_rows(JSON_DOUBLES), update(), delete],
        node=NODE,
        schema_version=2**53 + 1,
    )


def position(milliseconds: int) -> position_pb2.Position:
    """A position with a token that is no text."""
    return position_pb2.Position(
        epoch="01JDQ0000000000000000000EP", server_timestamp_ms=milliseconds, token=bytes(range(200, 256))
    )


def effect() -> bytes:
    """A serialized Effect."""
    return change_pb2.Effect(
        table="todo",
        type=change_pb2.EFFECT_TYPE_UPDATE,
        columns=["id", "title"],
        values=[text(BATCH_ID), value_pb2.Value(string_value="tea")],
    ).SerializeToString()


def group() -> change_pb2.LoggedGroup:
    """The last part of a group, with a batch whose effect goes on and one without effects."""
    loser = change_pb2.Loser(
        table="todo", key=[text(BATCH_ID)], column="title", batch_id=BATCH_ID, node_id="server", winner_batch_id="w"
    )
    return change_pb2.LoggedGroup(
        position=1764300000123,
        batches=[
            change_pb2.LoggedBatch(
                id=BATCH_ID,
                node=NODE,
                effects=[effect(), effect()[:5]],
                effect_incomplete=True,
                audiences=[change_pb2.Audiences(values=["team:1", 'user:"ü"']), change_pb2.Audiences()],
            ),
            change_pb2.LoggedBatch(id="01JDQ00000000000000000000C", node=batch_pb2.Node(id="server"), losers=[loser]),
        ],
        sums=[
            position_pb2.TableSum(table="todo", count=2**40, hash=b"\xff" * 16),
            position_pb2.TableSum(table="job", count=1, hash=b"\x01" * 16, audience="team:1"),
        ],
        incomplete=True,
        audience_change=change_pb2.AudienceChange(gained=["team:1"], lost=["team:2", "team:3"]),
        schema_change=schema_change().SerializeToString(),
    )


def schema_change() -> snapshot_pb2.SchemaChange:
    """A table that was renamed, one of whose columns was, and which has got another; one that came, one that went, one
    pulled anew."""
    columns = [
        snapshot_pb2.Column(name="id", kind=value_pb2.COLUMN_KIND_STRING, postgres_type="text", not_null=True),
        snapshot_pb2.Column(name="n", kind=value_pb2.COLUMN_KIND_INT64, postgres_type="bigint", sql_name="m"),
        snapshot_pb2.Column(name="n~2", kind=value_pb2.COLUMN_KIND_STRING, sql_name="n", initial=text("")),
    ]
    todo = snapshot_pb2.Table(
        name="todo", columns=columns, key_columns=["id"], sql_name="task", changed_position=1764300000123
    )
    note = snapshot_pb2.Table(name="note", columns=columns[:1], key_columns=["id"], changed_position=1764300000123)
    return snapshot_pb2.SchemaChange(
        version=2, tables=[todo, note], dropped=["job"], pulled=["visit"], created=["note"]
    )


def rejected() -> verdict_pb2.Verdict:
    """A verdict with everything that a rejection may tell."""
    server_row = value_pb2.NamedRow(columns=["id", "n"], values=[text(BATCH_ID), NULL])
    return verdict_pb2.Verdict(
        batch_id=BATCH_ID,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        position=1764300000123,
        reason=errors_pb2.REASON_CONSTRAINT,
        message="the check todo_n says no",
        mutations=[
            verdict_pb2.MutationVerdict(
                index=2, table="todo", key=[text(BATCH_ID)], columns=["n"], server_row=server_row
            )
        ],
        constraint="todo_n",
        sqlstate="23514",
    )


def merged() -> verdict_pb2.Verdict:
    """The verdict of an applied batch."""
    return verdict_pb2.Verdict(
        batch_id=BATCH_ID,
        status=verdict_pb2.VERDICT_STATUS_APPLIED,
        position=1764300000123,
        mutations=[
            verdict_pb2.MutationVerdict(
                index=1, outcome=verdict_pb2.OUTCOME_MERGED, table="todo", key=[text(BATCH_ID)], columns=["n"]
            )
        ],
    )


def messages() -> Iterator[tuple[str, Message]]:
    """Every vector: its name, and the message."""
    for arm, contents in ARMS.items():
        for i, content in enumerate(contents):
            yield f"{arm} {i}", value_pb2.Value(**{arm: content})
    yield "null", NULL
    yield "not given", value_pb2.Value()
    yield "empty array", array()
    yield "array with NULL", array(text("a"), NULL, text(""))
    yield "array of arrays", array(array(number(1), NULL), array(number(2), number(-3)))
    yield LIMITS_ROWS, limits_rows()
    yield "update", update()
    yield "batch", batch()
    yield (
        "envelope",
        batch_pb2.Envelope(
            payload=batch().SerializeToString(), basis=2**63 - 1, prev=BATCH_ID, payload_incomplete=True
        ),
    )
    for milliseconds in (0, 1, 1764300000123, 2**63 - 1):
        yield f"position {milliseconds}", position(milliseconds)
    state = position_pb2.NodeState(
        node=NODE,
        greatest_seen=position(1764300000123),
        acknowledged=1764300000000,
        disagreements=[position_pb2.Disagreement(table="todo", position=1764300000000)],
        dead_letters=position_pb2.DeadLetters(
            total=4,
            counts=[position_pb2.DeadLetterCount(reason=errors_pb2.REASON_CONSTRAINT, table="todo", count=3)],
        ),
        held=position_pb2.HeldAudiences(digest=b"\x02" * 16, chosen=True, choice=["team:1"]),
        app_version=2,
    )
    yield "node state", state
    server_state = position_pb2.ServerState(
        settled=position(1764300000123), floor=1, schema_version=7, server_time_ms=1764300000124
    )
    yield (
        "send",
        ingest_pb2.SendRequest(
            db_name="shop",
            node_state=state,
            node_token=b"\x00\xff",
            unanswered_batch_ids=[BATCH_ID, ""],
            envelopes=[batch_pb2.Envelope(payload=b"\x0a"), batch_pb2.Envelope()],
        ),
    )
    yield "rejected", rejected()
    yield "merged", merged()
    yield "effect", change_pb2.Effect.FromString(effect())
    yield "schema change", schema_change()
    yield "group", group()
    yield (
        "page",
        change_pb2.GetResponse(
            page=change_pb2.Page(groups=[group()], reached=position(1764300000123)),
            next_page_token=b"\x80\x01",
            state=server_state,
        ),
    )
    yield (
        "heartbeat",
        change_pb2.SubscribeResponse(
            state=server_state, sums=[position_pb2.TableSum(table="", count=0, hash=bytes(16))]
        ),
    )
    yield (
        "chunk",
        snapshot_pb2.PullResponse(
            table="todo",
            arrow_ipc=bytes(range(64)),
            arrow_ipc_incomplete=True,
            rows_done=2**33,
            as_of=position(5),
            resume=b"\xfe",
        ),
    )


def vectors() -> list[dict[str, Any]]:
    """The content of the file. ``json_inexact``: the JSON says NaN, whose bits a language may choose, or -0.0, whose
    sign some parsers of JSON lose."""
    made = []
    for name, message in messages():
        vector: dict[str, Any] = {
            "name": name,
            "message": message.DESCRIPTOR.full_name,
            "bytes": message.SerializeToString(deterministic=True).hex(),
            "json": json_format.MessageToDict(message),
        }
        if is_json_inexact(message):
            vector["json_inexact"] = True
        made.append(vector)
    return made


def is_json_inexact(message: Message) -> bool:
    """Whether any double in a message is NaN or minus zero."""
    for field, content in message.ListFields():
        parts = content if field.is_repeated else [content]
        if field.message_type is not None and any(is_json_inexact(part) for part in parts):
            return True
        if field.type == field.TYPE_DOUBLE and any(
            math.isnan(part) or (part == 0 and math.copysign(1.0, part) < 0) for part in parts
        ):
            return True
    return False


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n")
