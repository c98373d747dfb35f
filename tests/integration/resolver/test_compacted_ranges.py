"""A group that commits late stands behind every bound that was read before: no run of the compactor passes it by."""

from __future__ import annotations

from anabranch.store.lake.compactions import read_head, read_log_sums
from anabranch.testkit.resolver_rig import ResolverRig


def test_a_commit_between_the_bound_and_the_reading_is_in_the_next_range(rig: ResolverRig) -> None:
    """O05."""
    rig.sql("insert into app.todo values ('early', 'milk', false)")
    rig.drain()
    slow = rig.session()
    slow.execute("insert into app.todo values ('slow', 'eggs', false)")
    number, table_id = rig.database.id, rig.database.tables["todo"].id
    upto = read_head(rig.conn, number)
    before = read_log_sums(rig.conn, number, 0, upto)
    slow.commit()
    slow.close()
    rig.drain()
    assert read_log_sums(rig.conn, number, 0, upto) == before
    assert before[table_id].effects.count == 1
    head = read_head(rig.conn, number)
    assert head > upto
    assert read_log_sums(rig.conn, number, upto, head)[table_id].effects.count == 1
