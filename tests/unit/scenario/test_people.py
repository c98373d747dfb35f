"""People on nodes: whose a token is, and what it claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from anabranch.scenario.ground import Ground
from anabranch.scenario.parse import parse
from anabranch.scenario.values import Ids
from anabranch.scenario.who import People

STORY = """
name: a name
tables: [{name: todo, columns: {id: text}, key: id}]
nodes:
  a: {principal: alice, claims: {teams: [t1, $x]}, tables: [todo]}
  b: {}
  c: {principal: carol, claims: {teams: [t2]}}
expect: {queue: {a: 0}}
"""


class Issuer:
    """A ground of which only the tokens are asked."""

    def token(self, principal: str, database: str, claims: Mapping[str, Any]) -> str:
        return f"{principal}@{database} {sorted(claims.items())}"


def people() -> tuple[People, Ids]:
    ids = Ids()
    return People(cast(Ground, Issuer()), parse(STORY), ids, "db"), ids


def test_a_node_is_its_own_principal_unless_the_story_says_another() -> None:
    found, ids = people()
    assert found.token("a") == f"alice@db [('teams', ['t1', '{ids.of('x')}'])]"
    assert found.token("b") == "b@db []"
    assert found.token("later") == "later@db []"


def test_claims_are_replaced_as_a_whole() -> None:
    found, _ = people()
    found.give("a", {"groups": "g1"})
    found.give("later", {"teams": "t9"})
    assert found.token("a") == "alice@db [('groups', 'g1')]"
    assert found.token("later") == "later@db [('teams', 't9')]"


def test_who_logs_in_brings_the_claims_of_their_own() -> None:
    found, _ = people()
    found.give("a", {"teams": "t5"})
    found.log_in("a", "carol", None)
    assert found.token("a") == "carol@db [('teams', ['t2'])]"
    found.log_in("a", "stranger", None)
    assert found.token("a") == "stranger@db []"
    found.log_in("a", "alice", None)
    assert found.token("a") == "alice@db [('teams', 't5')]"
    found.log_in("a", "carol", {"teams": []})
    assert found.token("a") == "carol@db [('teams', [])]"


def test_a_copied_device_is_whose_the_first_one_was() -> None:
    found, _ = people()
    found.copy("a", "d")
    assert found.token("d") == found.token("a")
    assert found.spec("d").tables == ["todo"]
    found.give("e", {"teams": "t1"})
    found.copy("c", "e")
    assert found.token("e") == "carol@db [('teams', 't1')]"
