"""Values that USING has made others reach devices, also where the text of the command does not show it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import alter, change, settle, values_told

from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create table p (id text primary key, n int, b varchar(20), note text, a text);
create table oth (c int);
create function mig() returns void language plpgsql as
$$ begin alter table app.p alter n type bigint using n * 100; end $$
"""


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, {"p": None})
    made.sql("insert into app.p values ('1', 1, 'b', 'n', 'a')")
    settle(made)
    return made


@pytest.mark.parametrize(
    "text",
    [
        "alter table app.oth alter c type bigint; select app.mig()",
        "alter table app.p alter b type varchar(40); select app.mig()",
        "select app.mig(); alter table app.p alter b type varchar(40) using b",
        "alter table app.oth alter c type bigint; do 'begin perform app.mig(); end'",
    ],
)
def test_of_a_function_that_runs_beside_another_command(rig: ResolverRig, text: str) -> None:
    alter(rig, text)
    settle(rig)
    assert list(change(rig).pulled) == ["p"]


def test_of_a_text_whose_quotes_are_not_what_they_seem(rig: ResolverRig) -> None:
    head = rig.head
    alter(
        rig,
        "alter table p alter b type varchar(40), alter note set default E'it\\'s', alter a type text using a || 'x'",
    )
    settle(rig)
    assert values_told(rig, head) == [("1", {"a": "ax", "b": "b"})]
