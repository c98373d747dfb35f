"""The form of every text in every request, declared once and checked before a servicer sees the request.

A text without a form of its own here keeps a service from starting. Those judged elsewhere say so: a batch's texts are
answered by its verdict, and reports of devices about tables are read leniently, because no device may be kept from
syncing by what it reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch import limits
from anabranch.limits import MAX_AUDIENCE_BYTES
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class TextForm:
    """At most ``max_bytes`` of UTF-8 without NUL; where it is a ``line``, without any control character."""

    max_bytes: int
    line: bool = True

    def fault(self, text: str) -> str | None:
        """Why the text is not in form, or None."""
        if len(text) > self.max_bytes or (not text.isascii() and len(text.encode()) > self.max_bytes):
            return f"has more than {self.max_bytes} bytes"
        if text.isprintable():
            return None
        if "\0" in text:
            return "holds a NUL character"
        return "holds a control character" if self.line and _CONTROL.search(text) else None


_ID = TextForm(64)
_TABLE = TextForm(255, line=False)
"""A table of Postgres may have any name; one that is not synced is told so."""
_CELL = TextForm(1024 * 1024, line=False)
_AUDIENCE = TextForm(MAX_AUDIENCE_BYTES, line=False)
JUDGED_ELSEWHERE = None

FORMS: Mapping[str, TextForm | None] = {
    "db_name": TextForm(limits.MAX_NAME_BYTES),
    "batch_ids": _ID,
    "unanswered_batch_ids": _ID,
    "node_id": _ID,
    "Node.id": _ID,
    "Node.name": TextForm(limits.MAX_NODE_NAME_BYTES),
    "Position.epoch": _ID,
    "RequiredTable.table": _TABLE,
    "RequiredTable.audiences": _AUDIENCE,
    "HeldAudiences.choice": _AUDIENCE,
    "CompareRequest.table": _TABLE,
    "ListConflictsRequest.table": _TABLE,
    "Value.string_value": _CELL,
    "Value.decimal_value": TextForm(200_000),
    "Value.json_value": _CELL,
    "Value.uuid_value": _ID,
    "Value.text_literal": _CELL,
    "Envelope.prev": JUDGED_ELSEWHERE,
    "Disagreement.table": JUDGED_ELSEWHERE,
    "DeadLetterCount.table": JUDGED_ELSEWHERE,
    "HealthCheckRequest.service": TextForm(255, line=False),
}
"""By the field's name, or by message and field."""


@dataclass(slots=True)
class Plan:
    """The texts of a message type with their forms, and its fields that hold further ones."""

    texts: list[tuple[str, TextForm]]
    lists: list[tuple[str, TextForm]]
    messages: list[tuple[str, Plan]]
    repeated: list[tuple[str, Plan]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be checked."""
        return not (self.texts or self.lists or self.messages or self.repeated)


def plan_of(descriptor: Any) -> Plan:
    """The plan of a message type, a ``google.protobuf.descriptor.Descriptor``. Raises KeyError for a text that has no
    form."""
    return _plan(descriptor, {})


def _plan(descriptor: Any, known: dict[str, Plan]) -> Plan:
    found = known.get(descriptor.full_name)
    if found is not None:
        return found
    found = known[descriptor.full_name] = Plan([], [], [], [])
    for field in descriptor.fields:
        if field.message_type is not None:
            if not _has_texts(field.message_type, set()):
                continue
            inner = _plan(field.message_type, known)
            (found.repeated if field.is_repeated else found.messages).append((field.name, inner))
        elif field.type == field.TYPE_STRING:
            form = _form_of(field)
            if form is not None:
                (found.lists if field.is_repeated else found.texts).append((field.name, form))
    return found


def _has_texts(descriptor: Any, seen: set[str]) -> bool:
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        _has_texts(field.message_type, seen)
        if field.message_type is not None
        else field.type == field.TYPE_STRING and _form_of(field) is not None
        for field in descriptor.fields
    )


def _form_of(field: Any) -> TextForm | None:
    own = f"{field.containing_type.name}.{field.name}"
    return FORMS[own] if own in FORMS else FORMS[field.name]


def check(message: Any, plan: Plan, path: str = "") -> None:
    """Check all texts of a message. Raises CallError INVALID_REQUEST, which names the field."""
    for name, form in plan.texts:
        if (text := getattr(message, name)) and (fault := form.fault(text)):
            raise _invalid(f"{path}{name} {fault}")
    for name, form in plan.lists:
        for text in getattr(message, name):
            if fault := form.fault(text):
                raise _invalid(f"an entry of {path}{name} {fault}")
    for name, inner in plan.messages:
        if message.HasField(name):
            check(getattr(message, name), inner, f"{path}{name}.")
    for name, inner in plan.repeated:
        for one in getattr(message, name):
            check(one, inner, f"{path}{name}.")


def _invalid(message: str) -> CallError:
    return CallError(errors_pb2.REASON_INVALID_REQUEST, message)
