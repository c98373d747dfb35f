"""Two resolvers take turns in one database: neither trusts what it remembers from before the other one's group."""

from __future__ import annotations

from typing import Any

from anabranch.clock import Clock
from anabranch.store.inbox.claim import open_session, session_options
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits


def test_a_group_that_decides_nothing_leaves_no_old_sums_behind(rig: ResolverRig) -> None:
    options = session_options(statement_timeout_ms=10_000, lock_timeout_ms=250, idle_timeout_ms=5_000)
    sessions = [open_session(rig.url, options) for _ in range(2)]
    caches = [Cache(), Cache()]

    def commit(number: int) -> Any:
        return commit_group(
            sessions[number],
            caches[number],
            rig.database.id,
            most=100,
            now_ms=Clock().now_ms(),
            clock_offset_ms=0,
            limits=GroupLimits(),
        )

    node = rig.node("a")
    node.send(node.make(("insert", "todo", [{"id": "one", "title": "t"}])))
    commit(0)
    node.send(node.make(("insert", "todo", [{"id": "two", "title": "t"}])))
    commit(1)
    # The first one looks at a batch that waits, and decides nothing.
    node.send(node.make(("insert", "todo", [{"id": "waits", "title": "t"}])), prev=node.new_id(1_000))
    commit(0)
    node.send(node.make(("insert", "todo", [{"id": "three", "title": "t"}])))
    commit(0)
    rig.check()
    for session in sessions:
        session.close()
