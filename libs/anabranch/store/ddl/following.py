"""Follow a table's columns from marker to marker: which one became which, and whose values may be others by now.

DDL changes values without any trigger for rows. The markers tell of each step that Postgres wrote the table anew, and
its command's text then tells of USING (``using``). A type that was altered in itself changes the texts of its values in
every row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.store.ddl.markers import Marker
from anabranch.store.ddl.shapes import Shape, ShapeColumn
from anabranch.store.ddl.using import may_change

_INTEGERS = frozenset({21, 23, 20})
_TEXTS = frozenset({25, 1043})
_REAL, _DOUBLE = 700, 701
_COLUMNS_REWRITTEN = 4


@dataclass(slots=True)
class FollowedColumn:
    """A column of the last shape. ``was``: its number in the registered shape, None for one that is new. ``changed``:
    rows that were there may have other values than before. Of a new one, rows that were there have the constant whose
    text is ``initial`` (None: NULL), or where it is ``computed`` any values."""

    was: int | None
    changed: bool = False
    initial: str | None = None
    computed: bool = False


@dataclass(slots=True)
class Followed:
    """A table after its markers. ``gone``: dropped, or moved out of the database's schema. ``columns``: by number in
    ``shape``, that of the last marker which has one; ``before``: the shape before each marker. ``ambiguous``: why what
    waits of the table can't be read, "" where it can."""

    shape: Shape
    relation: int
    sql_name: str = ""
    gone: bool = False
    ambiguous: str = ""
    columns: dict[int, FollowedColumn] = field(default_factory=dict)
    before: list[Shape] = field(default_factory=list)


def follow(registered: Shape, relation: int, markers: Sequence[Marker]) -> Followed:
    """Follow the markers of one table, in their order, from the registered shape and oid (0: not known)."""
    at = Followed(registered, relation, columns={c.number: FollowedColumn(c.number) for c in registered.columns})
    for marker in markers:
        at.before.append(at.shape)
        at.gone = marker.dropped
        at.sql_name = marker.sql_name or at.sql_name
        at.ambiguous = at.ambiguous or marker.ambiguous
        if marker.shape is not None:
            _step(at, marker, marker.shape, behind=registered.behind)
    return at


def _step(at: Followed, marker: Marker, shape: Shape, *, behind: bool) -> None:
    same_table = at.relation == marker.relation
    named: Collection[str] = ()
    if marker.rewritten & _COLUMNS_REWRITTEN:
        named = may_change(marker.command, marker.sql_name, shape.by_name)
    columns: dict[int, FollowedColumn] = {}
    for c in shape.columns:
        was = at.shape.by_number.get(c.number) if same_table else at.shape.by_name.get(c.name)
        if was is None:
            columns[c.number] = _new(c, behind=behind, seen=not marker.placed)
            continue
        one = at.columns[was.number]
        altered = c.name in named or _is_altered(was, c, rewritten=bool(marker.rewritten))
        # Where nobody saw the command, it may have had a USING for every type that it gave.
        altered |= bool(marker.placed) and (was.type_oid, was.modifier) != (c.type_oid, c.modifier)
        # A constant is known by the text that it had as a value of the first type.
        computed = one.computed or (one.was is None and (altered or was.type_oid != c.type_oid))
        columns[c.number] = FollowedColumn(one.was, one.changed or altered, one.initial, computed)
    at.shape, at.relation, at.columns = shape, marker.relation, columns


def _new(c: ShapeColumn, *, behind: bool, seen: bool) -> FollowedColumn:
    """A column that a step brought. ``seen``: with the command that made it. Else a default may be gone that rows have
    got, written into them since."""
    if c.missing is not None and not behind:
        return FollowedColumn(None, initial=c.missing)
    fixed = seen and not (c.default or c.generated or c.identity or _has_default(c.deep) or behind)
    return FollowedColumn(None, computed=not fixed)


def _has_default(deep: Mapping[str, Any] | None) -> bool:
    while deep is not None and "domain" in deep:
        if deep.get("def"):
            return True
        deep = deep.get("of")
    return False


def _is_altered(was: ShapeColumn, now: ShapeColumn, *, rewritten: bool) -> bool:
    """Whether a step may have given the column other values."""
    if was.type_oid == now.type_oid and texts_differ(was.deep, now.deep):
        return True
    if not rewritten:
        # Only a new table's values are in question then: a type that is exchanged without a rewrite keeps them.
        return False
    if now.generated and (was.default, was.generated) != (now.default, now.generated):
        return True
    if (was.type_oid, was.modifier) == (now.type_oid, now.modifier):
        return False
    both = {was.type_oid, now.type_oid}
    if both <= _INTEGERS or (was.type_oid, now.type_oid) == (_REAL, _DOUBLE):
        return False
    longer = now.modifier == -1 or 0 <= was.modifier <= now.modifier
    return not (both <= _TEXTS and longer)


def texts_differ(was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> bool:
    """Whether values of a type print differently since the type itself was altered. A further label of an enumeration
    changes none; nor does another name of a type or an attribute."""
    if was is None or now is None:
        return was is not now
    if "enum" in was and "enum" in now:
        return bool(renamed_labels(was, now))
    if "row" in was and "row" in now:
        before, after = ({number: inner for number, _, _, inner in deep["row"]} for deep in (was, now))
        return list(before) != list(after) or any(texts_differ(inner, after[n]) for n, inner in before.items())
    for of in ("array", "range"):
        if of in was and of in now:
            return texts_differ(was[of], now[of])
    if "domain" in was and "domain" in now:
        return texts_differ(was.get("of"), now.get("of"))
    return True


def renamed_labels(was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels of an enumeration, or of one that a domain or an array is of, that have another name since: images
    that were captured before, or by a transaction that began before, have the old one."""
    before, after = dict(_labels(was)), dict(_labels(now))
    return {label: after[number] for number, label in before.items() if after.get(number, label) != label}


def _labels(deep: Mapping[str, Any] | None) -> Iterator[tuple[int, str]]:
    while deep is not None:
        if "enum" in deep:
            yield from ((number, label) for number, label in deep["enum"])
            return
        deep = deep.get("of") or deep.get("array")
