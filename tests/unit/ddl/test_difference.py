"""The meaning of markers: what a table is after them, which columns are the same ones, and whose values are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.store.ddl.difference import Registered, TableChange, difference
from anabranch.store.ddl.following import renamed_labels, texts_differ
from anabranch.store.ddl.markers import Marker
from anabranch.store.ddl.shapes import Shape, ShapeColumn, columns_of, shape_of_columns
from anabranch.values import Column, Kind, Table
from anabranch.values.postgres_types import TypeRow
from anabranch.values.table import FormerColumn

POSITION = 77
RELATION = 5_000
TEXT, INTEGER, BIGINT, NUMERIC, BOOLEAN, VARCHAR, UUID = 25, 23, 20, 1700, 16, 1043, 2950
TIMESTAMP, TIMESTAMPTZ, INTERVAL, INET, JSON, JSONB = 1114, 1184, 1186, 869, 114, 3802
STATE, PLACE, LABEL, INT_ARRAY, TEXT_ARRAY = 20_000, 20_001, 20_002, 1007, 1009


def row(oid: int, name: str, category: str = "X", element: int = 0, **further: Any) -> TypeRow:
    made = TypeRow(oid, "pg_catalog", name, "b", category, element, 0, -1, False, False)
    return replace(made, **further)


TYPES: Mapping[int, TypeRow] = {
    one.oid: one
    for one in (
        row(TEXT, "text"),
        row(INTEGER, "int4"),
        row(BIGINT, "int8"),
        row(NUMERIC, "numeric"),
        row(BOOLEAN, "bool"),
        row(VARCHAR, "varchar"),
        row(UUID, "uuid"),
        row(TIMESTAMP, "timestamp"),
        row(TIMESTAMPTZ, "timestamptz"),
        row(INTERVAL, "interval"),
        row(INET, "inet"),
        row(JSON, "json"),
        row(JSONB, "jsonb"),
        row(INT_ARRAY, "_int4", "A", INTEGER),
        row(TEXT_ARRAY, "_text", "A", TEXT),
        row(STATE, "state", "E", schema_name="app", typtype="e"),
        row(PLACE, "place", "C", schema_name="app", typtype="c"),
        row(LABEL, "label", "S", schema_name="app", typtype="d", base=TEXT, has_default=True),
    )
}
NAMES = {
    TEXT: "text", INTEGER: "integer", BIGINT: "bigint", NUMERIC: "numeric", BOOLEAN: "boolean",
    VARCHAR: "character varying", UUID: "uuid", TIMESTAMP: "timestamp without time zone",
    TIMESTAMPTZ: "timestamp with time zone", INTERVAL: "interval", INET: "inet", JSON: "json", JSONB: "jsonb",
    INT_ARRAY: "integer[]", TEXT_ARRAY: "text[]", STATE: "app.state", PLACE: "app.place", LABEL: "app.label",
}  # fmt: skip
KINDS = {
    TEXT: Kind.STRING, INTEGER: Kind.INT64, BIGINT: Kind.INT64, NUMERIC: Kind.DECIMAL, BOOLEAN: Kind.BOOL,
    VARCHAR: Kind.STRING, UUID: Kind.UUID, TIMESTAMP: Kind.TIMESTAMP, TIMESTAMPTZ: Kind.TIMESTAMP,
    INTERVAL: Kind.LITERAL, INET: Kind.LITERAL, JSON: Kind.JSON, JSONB: Kind.JSON, INT_ARRAY: Kind.ARRAY,
    TEXT_ARRAY: Kind.ARRAY, STATE: Kind.STRING, PLACE: Kind.LITERAL, LABEL: Kind.STRING,
}  # fmt: skip
LABELS = {"enum": [[1, "open"], [2, "in_prgs"]]}


def column(number: int, name: str, oid: int = TEXT, **further: Any) -> ShapeColumn:
    return ShapeColumn(number, name, NAMES[oid], oid, **further)


ID, TITLE, N = column(1, "id", not_null=True), column(2, "title"), column(3, "n", INTEGER)
START = Shape((ID, TITLE, N), (1,))


def registered(shape: Shape = START) -> Registered:
    columns = tuple(
        Column(
            c.name, KINDS[c.type_oid], c.type, number=c.number, not_null=c.not_null,
            element_kind={INT_ARRAY: Kind.INT64, TEXT_ARRAY: Kind.STRING}.get(c.type_oid),
        )
        for c in shape.columns
    )  # fmt: skip
    return Registered(Table("job", columns, tuple(shape.by_number[k].name for k in shape.key), 4), shape, RELATION)


def marker(shape: Shape | None, number: int = 1, **further: Any) -> Marker:
    told = {"sql_name": "job", "relation": RELATION, "command": "", "tag": "ALTER TABLE", "role": "", "application": ""}
    return Marker(**{"id": number, "xid": 1, "table_id": 4, "database_id": 1, "shape": shape, **told, **further})


def changed(*columns: ShapeColumn, key: tuple[int, ...] = (1,), start: Shape = START, **further: Any) -> TableChange:
    return difference(registered(start), [marker(Shape(columns, key), **further)], TYPES, position=POSITION)


def names(change: TableChange) -> dict[str, str]:
    """By identity the names in SQL."""
    assert change.after is not None
    return {c.name: c.sql_name for c in change.after.columns}


class TestAdded:
    @pytest.mark.parametrize(
        ("added", "initial", "rewritten"),
        [
            (column(4, "x", INTEGER), None, False),
            (column(4, "x", INTEGER, default="md5", missing="3"), 3, False),
            (column(4, "x", INTEGER, default="md5"), None, True),
            (column(4, "x", INTEGER, generated="s", default="md5"), None, True),
            (column(4, "x", INTEGER, identity="d"), None, True),
            (column(4, "x", LABEL, deep={"domain": "text", "def": True}), None, True),
            (column(4, "x", LABEL, deep={"domain": "text"}), None, False),
            (column(4, "x", INT_ARRAY, default="md5", missing="{1,NULL}"), (1, None), False),
            (column(4, "x", BOOLEAN, default="md5", missing="t"), True, False),
            (column(4, "x", STATE, default="md5", missing="open", deep=LABELS), "open", False),
        ],
    )
    def test_rows_that_were_there_have_null_a_constant_or_values_of_their_own(
        self, added: ShapeColumn, initial: object, rewritten: bool
    ) -> None:
        change = changed(ID, TITLE, N, added)
        [made] = change.added
        assert (made.initial, made.added_position) == ((initial,), POSITION)
        assert change.rewritten == ({"x"} if rewritten else set())
        assert not change.recount

    def test_one_that_is_computed_when_it_is_read_is_not_carried(self) -> None:
        change = changed(ID, TITLE, N, column(4, "x", INTEGER, generated="v", default="md5"))
        assert not change.is_known
        assert change.after == change.before

    def test_the_constant_is_that_of_the_step_that_added_it(self) -> None:
        first = Shape((*START.columns, column(4, "x", INTEGER, default="md5", missing="3")), (1,))
        later = Shape((*START.columns, column(4, "x", INTEGER, default="md5"), column(5, "y")), (1,))
        change = difference(registered(), [marker(first, 1), marker(later, 2, rewritten=2)], TYPES, position=POSITION)
        assert {c.name: c.initial for c in change.added} == {"x": (3,), "y": (None,)}
        assert change.rewritten == set()

    def test_a_constant_of_a_type_that_was_exchanged_is_none(self) -> None:
        first = Shape((*START.columns, column(4, "x", TEXT, default="md5", missing="abc")), (1,))
        later = Shape((*START.columns, column(4, "x", INTEGER)), (1,))
        both = [marker(first, 1), marker(later, 2, rewritten=4, command="alter table job alter x type integer")]
        change = difference(registered(), both, TYPES, position=POSITION)
        [made] = change.added
        assert (made.kind, made.initial, set(change.rewritten)) == (Kind.INT64, (None,), {"x"})

    def test_one_that_was_there_before_it_was_known_sends_its_values(self) -> None:
        start = replace(START, behind=True)
        change = changed(ID, TITLE, N, column(4, "x", INTEGER), start=start)
        assert change.rewritten == {"x"}

    @pytest.mark.parametrize(("name", "identity"), [("x", "x"), ("Title", "Title~2"), ("TITLE~2", "TITLE~2")])
    def test_its_identity_is_its_name_unless_it_is_taken_in_whatever_case(self, name: str, identity: str) -> None:
        change = changed(ID, N, column(4, name))
        assert names(change)[identity] == name


class TestGone:
    def test_it_is_remembered_and_counts_for_the_sum(self) -> None:
        change = changed(ID, N)
        [former] = change.dropped
        assert (former.column.name, former.dropped_position, former.successor) == ("title", POSITION, "")
        assert change.recount
        assert change.after is not None
        assert change.after.former == (former,)

    def test_identities_are_never_used_again(self) -> None:
        was = registered()
        table = replace(was.table, former=(FormerColumn(Column("x", Kind.STRING, "text"), 5),))
        both = [marker(Shape((ID, N, column(4, "title"), column(5, "x")), (1,)))]
        change = difference(replace(was, table=table), both, TYPES, position=POSITION)
        assert names(change) == {"id": "id", "n": "n", "title~2": "title", "x~2": "x"}

    def test_one_that_came_and_went_was_never_there(self) -> None:
        first = Shape((*START.columns, column(4, "x")), (1,))
        change = difference(registered(), [marker(first, 1), marker(START, 2)], TYPES, position=POSITION)
        assert not change.is_known
        assert len(change.shapes_before) == 2


class TestNames:
    def test_columns_swap_their_names(self) -> None:
        change = changed(ID, replace(TITLE, name="n"), replace(N, name="title"))
        assert names(change) == {"id": "id", "title": "n", "n": "title"}
        assert change.renamed == {"title": ("title", "n"), "n": ("n", "title")}
        assert (change.recount, set(change.rewritten)) == (False, set())

    def test_a_table_has_another_name(self) -> None:
        change = changed(*START.columns, sql_name="task")
        assert change.after is not None
        assert (change.after.name, change.after.sql_name, change.renamed) == ("job", "task", {"": ("job", "task")})

    def test_numbers_of_another_relation_mean_nothing(self) -> None:
        shape = Shape((replace(N, number=1), replace(TITLE, number=2), replace(ID, number=3)), (3,))
        change = difference(registered(), [marker(shape, relation=6_000)], TYPES, position=POSITION)
        assert names(change) == {"n": "n", "title": "title", "id": "id"}
        assert (change.dropped, change.added, change.pulled) == ((), (), "")


class TestTypes:
    @pytest.mark.parametrize(
        ("was", "now", "same", "rewrite", "sent"),
        [
            (INTEGER, BIGINT, True, 4, False),
            (BIGINT, INTEGER, True, 4, False),
            (INTEGER, NUMERIC, False, 4, True),
            (INTEGER, TEXT, False, 4, True),
            (VARCHAR, TEXT, True, 0, False),
            (STATE, TEXT, True, 4, True),
            (JSON, JSONB, True, 4, True),
            (TIMESTAMP, TIMESTAMPTZ, False, 4, True),
            (TIMESTAMP, TIMESTAMPTZ, False, 0, True),
            (INTERVAL, INET, False, 4, True),
            (INT_ARRAY, TEXT_ARRAY, False, 4, True),
            (TEXT, LABEL, True, 0, False),
        ],
    )
    def test_a_kind_is_for_ever(self, was: int, now: int, same: bool, rewrite: int, sent: bool) -> None:
        start = Shape((ID, column(2, "x", was)), (1,))
        command = "alter table job alter x type t"
        change = changed(ID, column(2, "x", now), start=start, rewritten=rewrite, command=command)
        identity = "x" if same else "x~2"
        assert names(change) == {"id": "id", identity: "x"}
        assert change.rewritten == ({identity} if sent else set())
        assert [(f.column.name, f.successor) for f in change.dropped] == ([] if same else [("x", "x~2")])
        assert change.recount is not same

    def test_a_type_that_nobody_saw_given_may_have_come_with_other_values(self) -> None:
        start = Shape((ID, column(2, "x", INTEGER)), (1,))
        assert changed(ID, column(2, "x", BIGINT), start=start, rewritten=2, placed=7).rewritten == {"x"}
        assert changed(ID, column(2, "x", INTEGER), start=start, rewritten=2, placed=7).rewritten == set()

    @pytest.mark.parametrize(
        ("was", "now", "sent"), [((-1), 20, True), (20, 10, True), (10, 20, False), (10, -1, False)]
    )
    def test_texts_may_be_cut(self, was: int, now: int, sent: bool) -> None:
        start = Shape((ID, column(2, "x", VARCHAR, modifier=was)), (1,))
        command = "alter table job alter x type varchar"
        change = changed(ID, column(2, "x", VARCHAR, modifier=now), start=start, rewritten=4, command=command)
        assert bool(change.rewritten) is sent

    @pytest.mark.parametrize(
        ("command", "sent"),
        [
            ("alter table job alter n type integer using n * 2", {"n"}),
            ('ALTER TABLE job ALTER COLUMN "n" SET DATA TYPE int USING 1', {"n"}),
            ("alter table job alter n type integer, alter title type text using 'x'", {"n", "title"}),
            ("alter table job alter id type text; alter table job alter n type int using 1", {"n"}),
            ("begin; set search_path = app; alter table if exists only app.job alter n type int using 1; end", {"n"}),
            ('ALTER TABLE "App"."Job" ALTER N TYPE int USING 1;', {"n"}),
            ("alter table job alter n type bigint", set()),
            ("alter table job alter n type bigint;", set()),
            ("alter table other alter n type bigint", {"id", "title", "n"}),
            ("alter table other alter n type bigint; select migrate()", {"id", "title", "n"}),
            ("alter table job alter n type bigint; select migrate()", {"id", "title", "n"}),
            ("alter table job alter n type bigint; drop table other", set()),
            ("alter table job alter n type int using 1; insert into app.job (id, n) values ('x', 5)", {"n"}),
            (
                "insert into job select g, 1 from generate_series(1, 9) g; alter table job alter n type int using 1",
                {"n"},
            ),
            ("update job set n = abs(n); alter table job alter n type int using 1; alter type t add value 'x'", {"n"}),
            ("create table t (a varchar(5)); alter table job alter n type int using 1; drop table t", {"n"}),
            ("alter table job alter n type int using 1; insert into t values (migrate())", {"id", "title", "n"}),
            ("alter table job alter n type int using 1; create table t as select app.abs(1)", {"id", "title", "n"}),
            ('alter table job alter n type int using 1; update t set a = "abs"(1)', {"id", "title", "n"}),
            ("alter table job alter n type int using 1; insert into t values (1) on conflict (a) do nothing", {"n"}),
            ("create table t (a int references u on delete set null); alter table job alter n type int using 1", {"n"}),
            ("create trigger t after insert on u execute function g; alter table job alter n type int using 1", {"n"}),
            ("alter table job alter n type int using 1; create table t as execute f", {"id", "title", "n"}),
            ("alter table job alter n type int using 1; copy t from program 'f'", {"id", "title", "n"}),
            ("alter table job alter n type int using 1; call migrate()", {"id", "title", "n"}),
            ("alter table job alter n type int using 1; execute migrate", {"id", "title", "n"}),
            ("alter table job alter id set default E'it\\'s', alter n type int using n || 'x'", {"n"}),
            ("alter table job alter id set default 'it\\'s', alter n type int using n || 'x'", {"id", "title", "n"}),
            ("alter table job alter id set default $$it's$$, alter n type int using n || 'x'", {"id", "title", "n"}),
            ("alter table job /* it's */ alter n type int using 1", {"n"}),
            ("alter table job /* /* */ ' */ alter n type int using 1 -- '", {"id", "title", "n"}),
            ("alter table job alter n type int using '1", {"id", "title", "n"}),
            ("alter table job alter n" + "n" * 63 + " type int using 1", {"id", "title", "n"}),
            ("-- alter id type\nalter table job alter n type int using length('alter title type x')", {"n"}),
            ("select migrate()", {"id", "title", "n"}),
            ("do $$ begin alter table job alter n type int using 5; end $$", {"id", "title", "n"}),
            ("do $$ begin execute 'alter table job alter n type int using 5'; end $$", {"id", "title", "n"}),
            ('alter table job alter U&"\\006e" type int using 5', {"id", "title", "n"}),
            ("", {"id", "title", "n"}),
            ("alter table job alter n type int using 5" + " " * 4_000, {"id", "title", "n"}),
        ],
    )
    def test_using_may_change_what_the_text_names(self, command: str, sent: set[str]) -> None:
        change = changed(*START.columns, rewritten=4, command=command)
        if "id" in sent:
            assert change.pulled == 'values of the key column "id" were changed'
        else:
            assert (set(change.rewritten), change.pulled) == (sent, "")

    def test_a_default_that_is_computed_per_row_changes_no_other_column(self) -> None:
        assert not changed(*START.columns, rewritten=2, command="select migrate()").is_known

    def test_a_type_that_is_altered_in_itself(self) -> None:
        for was, now, differ in (
            (LABELS, {"enum": [[1, "open"], [2, "in_prgs"], [3, "done"]]}, False),
            (LABELS, {"enum": [[3, "new"], [1, "open"], [2, "in_progress"]]}, True),
            ({"array": LABELS}, {"array": {"enum": [[1, "opened"], [2, "in_prgs"]]}}, True),
            ({"row": [[1, "a", "text", None]]}, {"row": [[1, "b", "text", None]]}, False),
            ({"row": [[1, "a", "text", None]]}, {"row": [[1, "a", "text", None], [2, "b", "text", None]]}, True),
            ({"row": [[1, "a", "x", LABELS]]}, {"row": [[1, "a", "x", {"enum": [[1, "o"], [2, "p"]]}]]}, True),
            ({"domain": "text"}, {"domain": "text", "nn": True}, False),
            ({"domain": "x", "of": LABELS}, {"domain": "x", "of": {"enum": [[1, "o"], [2, "in_prgs"]]}}, True),
        ):
            assert texts_differ(was, now) is differ
            start = Shape((ID, column(2, "x", PLACE, deep=was)), (1,))
            change = changed(ID, column(2, "x", PLACE, deep=now), start=start)
            assert change.rewritten == ({"x"} if differ else set())

    def test_labels_that_have_another_name(self) -> None:
        now = {"array": {"enum": [[1, "open"], [2, "done"]]}}
        assert renamed_labels({"array": LABELS}, now) == {"in_prgs": "done"}


class TestKeys:
    def test_a_key_that_changes_is_pulled(self) -> None:
        change = changed(*START.columns, key=(1, 2))
        assert change.pulled == "its key was (id) and is (id, title)"
        assert (change.recount, set(change.rewritten)) == (True, set())

    def test_a_key_with_another_name_is_the_same_key(self) -> None:
        change = changed(replace(ID, name="key"), TITLE, N)
        assert change.pulled == ""
        assert change.after is not None
        assert change.after.key_columns == ("id",)

    def test_a_wider_key_is_the_same_key(self) -> None:
        start = Shape((column(1, "id", INTEGER), TITLE), (1,))
        change = changed(
            column(1, "id", BIGINT), TITLE, start=start, rewritten=4, command="alter table job alter id type bigint"
        )
        assert (change.pulled, set(change.rewritten)) == ("", set())

    def test_a_key_of_another_kind_is_pulled(self) -> None:
        start = Shape((column(1, "id", INTEGER), TITLE), (1,))
        change = changed(
            column(1, "id", TEXT), TITLE, start=start, rewritten=4, command="alter table job alter id type text"
        )
        assert change.pulled == "its key (id) has another type"

    def test_a_marker_that_is_ambiguous_pulls(self) -> None:
        assert changed(*START.columns, column(4, "x"), ambiguous="so").pulled == "so"


def test_a_table_that_went() -> None:
    change = difference(registered(), [marker(None, dropped=True)], TYPES, position=POSITION)
    assert (change.after, change.texts) == (None, ('table "job" was dropped',))


def test_a_table_that_went_elsewhere_and_came_back() -> None:
    away, back = marker(START, 1, dropped=True), marker(START, 2)
    change = difference(registered(), [away, back], TYPES, position=POSITION)
    assert not change.is_known


def test_a_table_that_is_refused_stays_as_it_was() -> None:
    shape = Shape(START.columns, ())
    change = difference(registered(), [marker(shape)], TYPES, position=POSITION, refusals=["no primary key"])
    assert (change.after, change.refused, change.is_known) == (change.before, "no primary key", False)


def test_shapes_come_back_from_their_json() -> None:
    shape = Shape(
        (
            column(1, "id", not_null=True, modifier=7),
            column(3, "s", STATE, deep=LABELS, textual=True, generated="s", identity="d", default="x", missing="open"),
        ),
        (1,),
        behind=True,
    )
    assert Shape.from_json(shape.to_json()) == shape


def test_images_are_read_by_types_that_can_be_there() -> None:
    shape = Shape(
        (
            column(1, "a"),
            column(2, "b", STATE, deep=LABELS),
            column(3, "c", PLACE, deep={"row": []}),
            column(4, "d", LABEL, deep={"domain": "character varying(3)"}),
            column(5, "e", LABEL, deep={"domain": "app.state", "of": LABELS}),
            column(6, "f", PLACE, textual=True),
            column(7, "g", STATE, deep={"array": LABELS}),
        ),
        (1,),
    )
    assert [(c.oid, c.read_as) for c in columns_of(shape)] == [
        (TEXT, "text"), (STATE, "text"), (PLACE, ""), (LABEL, "character varying(3)"), (LABEL, "text"), (TEXT, "text"),
        (STATE, ""),
    ]  # fmt: skip


def test_a_shape_that_nobody_kept_is_that_of_the_columns() -> None:
    table = registered().table
    made = shape_of_columns(table, Shape((ID, replace(TITLE, type="other", type_oid=1)), (1,)))
    assert [(c.number, c.name, c.type_oid) for c in made.columns] == [(1, "id", TEXT), (2, "title", 0), (3, "n", 0)]
    assert (made.key, made.behind) == ((1,), True)


# A table as Postgres would have it after some steps, with its own account of which column is which.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcXY"), st.sampled_from(list(KINDS))),
        st.tuples(st.just("drop"), st.integers(0, 9)),
        st.tuples(st.just("rename"), st.integers(0, 9), st.sampled_from("abcxyTitle")),
        st.tuples(st.just("swap"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("retype"), st.integers(0, 9), st.sampled_from(list(KINDS))),
        st.tuples(st.just("not null"), st.integers(0, 9)),
    ),
    max_size=12,
)


def stepped(columns: list[ShapeColumn], step: Sequence[Any], free: int) -> list[ShapeColumn]:
    """The columns after one step; as they were, where Postgres would refuse it."""
    what, *rest = step
    taken = {c.name for c in columns}
    if what == "add":
        name, oid = rest
        return columns if name in taken else [*columns, column(free, name, oid)]
    place = rest[0] % len(columns)
    one = columns[place]
    if what == "drop":
        return columns if one.number == 1 else [c for c in columns if c is not one]
    if what == "rename":
        return columns if rest[1] in taken else [replace(c, name=rest[1]) if c is one else c for c in columns]
    if what == "swap":
        other = columns[rest[1] % len(columns)]
        called = {one.number: other.name, other.number: one.name}
        return [replace(c, name=called.get(c.number, c.name)) for c in columns]
    if what == "retype":
        if one.number == 1:
            return columns
        return [replace(c, type=NAMES[rest[1]], type_oid=rest[1]) if c is one else c for c in columns]
    return [replace(c, not_null=not c.not_null) if c is one else c for c in columns]


@given(st.lists(STEPS, min_size=1, max_size=4))
def test_after_any_steps_columns_are_the_catalogs_and_identities_are_for_ever(groups: list[list[Any]]) -> None:
    was, free = registered(), 4
    kinds: dict[str, tuple[Kind, Kind | None]] = {c.name: (c.kind, c.element_kind) for c in was.table.columns}
    by_number = {c.number: c.name for c in was.table.columns}
    for group, steps in enumerate(groups):
        columns, markers = list(was.shape.columns), []
        for number, step in enumerate(steps or [("add", "zz", TEXT)]):
            columns = stepped(columns, step, free)
            free += 1
            markers.append(marker(Shape(tuple(columns), (1,)), number + 1))
        change = difference(was, markers, TYPES, position=group + 1)
        after = change.after
        assert after is not None
        assert change.pulled == ""
        # As the catalog has it, in its order.
        assert [(c.number, c.sql_name, c.postgres_type) for c in after.columns] == [
            (c.number, c.name, c.type) for c in columns
        ]
        # No two columns that ever were have one identity, in whatever case, and each has one kind.
        every = [*(c.name for c in after.columns), *(f.column.name for f in after.former)]
        assert len({name.casefold() for name in every}) == len(every)
        for c in [*after.columns, *(f.column for f in after.former)]:
            assert kinds.setdefault(c.name, (c.kind, c.element_kind)) == (c.kind, c.element_kind)
        # A column with the number of an earlier one is the same, or its successor.
        successors = {f.column.name: f.successor for f in after.former}
        for c in after.columns:
            if c.number in by_number:
                assert c.name == by_number[c.number] or successors[by_number[c.number]] == c.name
        # A column that went is in the history, once, and a new one has what it begins with.
        assert {f.column.name for f in change.dropped} == set(was.table.by_name) - set(after.by_name)
        assert {c.name for c in change.added} == set(after.by_name) - set(was.table.by_name)
        assert all(c.initial and c.added_position == group + 1 for c in change.added)
        assert change.recount == bool(change.dropped)
        assert change.rewritten <= set(after.by_name)
        assert change.is_known == (after != was.table or bool(change.rewritten))
        by_number = {c.number: c.name for c in after.columns}
        was = Registered(after, Shape(tuple(columns), (1,)), RELATION)
