"""The people of a story on its nodes: principals, the claims of their tokens, and the tokens themselves.

A node's claims are those that the story gave it last, also before the node was made. Whoever logs in on a device brings
the claims that the story gave this person last, on whatever node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.scenario.ground import Ground
from anabranch.scenario.model import Scenario
from anabranch.scenario.setting import NodeSpec
from anabranch.scenario.values import Ids

Claims = Mapping[str, Any]
_NOTHING = NodeSpec()


class People:
    """The people of a story, whose tokens are for ``database``."""

    def __init__(self, ground: Ground, scenario: Scenario, ids: Ids, database: str) -> None:
        self._ground = ground
        self._ids = ids
        self._database = database
        self._specs = dict(scenario.who)
        self._principals: dict[str, str] = {}
        self._claims: dict[str, Claims] = {}
        self._last: dict[str, Claims] = {}
        for name in self._specs:
            self._principals[name] = self.spec(name).principal or name
            self.give(name, self.spec(name).claims)

    def spec(self, node: str) -> NodeSpec:
        """The node as the file declares it."""
        return self._specs.get(node, _NOTHING)

    def principal(self, node: str) -> str:
        """The principal of the node's token; the node's own name where the story has not said."""
        return self._principals.get(node, node)

    def claims(self, node: str) -> Claims:
        """The claims of the node's token."""
        return self._claims.get(node, {})

    def token(self, node: str) -> str:
        """The node's token."""
        return self._ground.token(self.principal(node), self._database, self.claims(node))

    def give(self, node: str, claims: Claims) -> None:
        """Have the node's next token carry these claims and no others."""
        self._claims[node] = self._last[self.principal(node)] = self._ids.resolve(claims)

    def copy(self, node: str, to: str) -> None:
        """Have another device begin as ``node`` is, unless it was given claims of its own."""
        self._specs[to] = self.spec(node)
        self._principals[to] = self.principal(node)
        self._claims.setdefault(to, self.claims(node))

    def log_in(self, node: str, principal: str, claims: Claims | None) -> None:
        """Have another person open the app there; ``claims`` None: those that the person had last."""
        self._principals[node] = principal
        self.give(node, self._last.get(principal, {}) if claims is None else claims)
