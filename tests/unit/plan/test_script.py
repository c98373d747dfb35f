"""Scripts are taken apart where psql would, and what can't be run is told with its line."""

from __future__ import annotations

import pytest

from anabranch.store.plan.script import ScriptError, read_script


def texts(script: str) -> list[str]:
    return [one.text for one in read_script(script).statements]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" ; ;\n-- nothing; at all\n/* ; /* ; */ */", []),
        ("select 1; select 2", ["select 1", "select 2"]),
        ("begin; alter table a add b int; commit;", ["begin", "alter table a add b int", "commit"]),
        ("select ';', e'\\';', \"a;b\" -- ;\n; select 2", ["select ';', e'\\';', \"a;b\" -- ;\n", "select 2"]),
        ("do $$ begin; end $$; do $x$ $$ ; $x$", ["do $$ begin; end $$", "do $x$ $$ ; $x$"]),
        ("create rule r as on insert to a do (select 1; select 2); select 3", None),
        (
            "create or replace function f() returns int begin atomic select case when true then 1 end; end; select 1",
            None,
        ),
        ("create function f() returns int language sql as 'select 1; select 2'; select 1", None),
        ("select $1, a$b, $2; select 2", ["select $1, a$b, $2", "select 2"]),
    ],
)
def test_statements_end_where_they_should(script: str, expected: list[str] | None) -> None:
    found = texts(script)
    if expected is None:
        head, _, tail = script.rpartition("; ")
        expected = [head, tail]
    assert found == expected


def test_each_has_its_line_and_says_whether_it_may_write_rows() -> None:
    script = read_script("-- first\n\nalter table a add b int;\n  update a\n set b = 1;with x as (select 1) insert")
    assert [(one.line, one.writes_rows) for one in script.statements] == [(3, False), (4, True), (5, True)]


def test_what_only_psql_shows_is_left_out() -> None:
    script = read_script("\\set ON_ERROR_STOP on\n\\timing\nselect 1;\n\\echo done;\nselect 2\n\\restrict x\n")
    assert [one.text.strip() for one in script.statements] == ["select 1", "select 2"]
    assert script.left_out == (
        "line 1: \\set ON_ERROR_STOP on",
        "line 2: \\timing",
        "line 4: \\echo done;",
        "line 6: \\restrict x",
    )


@pytest.mark.parametrize(
    ("script", "line", "word"),
    [
        ("select 1;\n\\i other.sql", 2, "other.sql"),
        ("\\connect other", 1, "psql"),
        ("\\! rm -rf x", 1, "psql"),
        ("select 1;\n\ncopy a from stdin;\n1\n\\.\n", 3, "COPY"),
        ("select 1;\nselect 'a", 2, "does not end"),
        ('select "a', 1, "does not end"),
        ("\n/* a", 2, "comment"),
        ("do $x$ a $$", 1, "$x$"),
    ],
)
def test_what_can_not_be_run_is_told(script: str, line: int, word: str) -> None:
    with pytest.raises(ScriptError, match=f"line {line}: ") as caught:
        read_script(script)
    assert word in str(caught.value)
    assert caught.value.line == line
