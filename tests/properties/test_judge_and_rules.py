"""The fault run's judge and ``anabranch.merge``, which share no code, on the same small histories: every verdict, row
and conflict alike. Thousands of histories with late batches, clocks that are off and rows of all ages; so that what a
fault run finds is a fault of what stands around the rules, and a rule that both had wrong would have to be wrong twice.
Somebody writes by plain SQL between the groups, and the batches of devices meet that, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_node import MemoryNode
from anabranch.testkit.memory_server import MemoryServer
from anabranch.testkit.memory_server import Sent as MemorySent
from anabranch.testkit.memory_story import LOOSE, SLOT_MS, Making, makings, new_server, tell
from anabranch.testkit.torture.functions import FUNCTIONS
from anabranch.testkit.torture.judge import Judge
from anabranch.testkit.torture.registers import At, Logged, Lost, Rules, Sent, ServerBatch, Step
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2, verdict_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.messages import column_writer

KINDS = {"rank": Kind.INT64}
TABLES = {
    name: Table(
        name,
        tuple(Column(column, KINDS.get(column, Kind.STRING), "") for column in table.columns),
        ("id",),
    )
    for name, table in LOOSE.items()
}
policies = st.builds(
    Policy,
    order=st.sampled_from(["server", "edit"]),
    delete=st.sampled_from(["rejects", "wins"]),
    resurrect=st.booleans(),
    columns=st.fixed_dictionaries(
        {},
        optional={
            "rank": st.sampled_from(["max", "min", "counter", "reject"]),
            "title": st.just("reject"),
            # Not where an insert leaves a column to its default, which the rules learn of with what was stored.
            "list_id": st.sampled_from(["reject", *(f"function:{name}" for name in FUNCTIONS)]),
            "note": st.sampled_from(["reject", *(f"function:{name}" for name in FUNCTIONS)]),
        },
    ),
)


def nothing_broken(touched: Collection[At], rows: Mapping[At, Mapping[str, Cell]]) -> Collection[str]:
    return ()


def rules_of(table: str, policy: Policy) -> Rules:
    columns = {c: p for c, p in policy.columns.items() if c in LOOSE[table].columns}
    return Rules(policy.order, policy.delete, policy.resurrect, columns)


def payload(sent: MemorySent) -> bytes:
    """The batch as it travels."""
    made = batch_pb2.DbMutationBatch(id=sent.id)
    made.node.id = sent.node
    for mutation in sent.mutations:
        table = TABLES[mutation.table]
        names = list(dict.fromkeys(["id", *(name for change in mutation.rows for name in change.values)]))
        message = made.mutations.add(table=mutation.table, type=int(mutation.type), columns=names)
        for change in mutation.rows:
            values = {**change.values, "id": change.key}
            message.rows.add(values=[value_of(table, name, values) for name in names])
        before = [change.before or {} for change in mutation.rows]
        if any(before):
            columns = list(dict.fromkeys(name for one in before for name in one))
            message.undo.columns.extend(columns)
            for one in before:
                message.undo.rows.add(values=[value_of(table, name, one) for name in columns])
    return made.SerializeToString()


def value_of(table: Table, name: str, values: Mapping[str, Cell]) -> value_pb2.Value:
    return column_writer(table.by_name[name])(values[name]) if name in values else value_pb2.Value()


def verdict_of(server: MemoryServer, batch_id: str) -> verdict_pb2.Verdict:
    found = server.verdicts[batch_id]
    verdict = verdict_pb2.Verdict(batch_id=batch_id, position=found.position)
    if found.reason:
        verdict.status = verdict_pb2.VERDICT_STATUS_REJECTED
        verdict.reason = errors_pb2.Reason.Value(f"REASON_{found.reason}")
    else:
        verdict.status = verdict_pb2.VERDICT_STATUS_APPLIED
        for outcome in found.outcomes:
            verdict.mutations.add(outcome=int(outcome))
    return verdict


by_sql = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from([("list", "l1"), ("list", "l2"), ("todo", "t1"), ("todo", "t2")]),
        st.sampled_from([MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE]),
        st.sampled_from(["milk", "by SQL"]),
    ),
    max_size=4,
)


class BySql:
    """Writes after the groups of some slots, and keeps a journal: ``journal`` by transaction, ``batches`` by position
    as the log has them."""

    def __init__(self, wanted: list[tuple[int, At, MutationType, str]]) -> None:
        self.wanted = wanted
        self.slot = 0
        self.journal: dict[str, list[Step]] = {}
        self.batches: dict[int, list[ServerBatch]] = {}

    def __call__(self, server: MemoryServer, nodes: list[MemoryNode]) -> None:
        self.slot += 1
        for slot, at, kind, title in self.wanted:
            if slot != self.slot:
                continue
            before = server.live().get(at)
            values = {} if kind is MutationType.DELETE else {"title": title}
            if kind is MutationType.INSERT:
                values["id"] = at[1]
            if not server.write([(at[0], kind, at[1], values)], 0):
                continue
            logged = server.log[-1]
            name = str(len(self.journal))
            self.journal[name] = [Step(at, before, server.live().get(at))]
            changes = [Logged(at, kind.name.lower(), effect.values) for effect in logged.effects]
            self.batches[logged.position] = [ServerBatch(logged.id, name, changes)]


@pytest.mark.slow
@given(
    story=makings(),
    sql=by_sql,
    policy=policies,
    park_ms=st.sampled_from([0, 2 * SLOT_MS, 1000 * SLOT_MS]),
    clocks=st.tuples(st.integers(-5000, 5000), st.integers(-5000, 5000)),
)
@settings(deadline=None, max_examples=2_000)
def test_the_judge_and_the_rules_decide_alike(
    story: list[Making],
    sql: list[tuple[int, At, MutationType, str]],
    policy: Policy,
    park_ms: int,
    clocks: tuple[int, int],
) -> None:
    server = new_server(policy, park_ms, LOOSE)
    server.functions = FUNCTIONS
    judge = Judge(
        TABLES,
        {name: rules_of(name, policy) for name in TABLES},
        nothing_broken,
        {name: table.columns for name, table in LOOSE.items()},
        functions=FUNCTIONS,
    )
    judge.preset(server.live())
    writer = BySql(sql)
    _, arrivals = tell(server, story, writer, clocks_ms=clocks)
    judge.journal = writer.journal
    groups: dict[int, list[tuple[Sent, verdict_pb2.Verdict]]] = {}
    for sent in {arrival.sent.id: arrival.sent for arrival in arrivals}.values():
        verdict = verdict_of(server, sent.id)
        groups.setdefault(verdict.position, []).append((Sent(sent.id, sent.node, sent.basis, payload(sent)), verdict))
    for position in sorted(groups.keys() | writer.batches.keys()):
        judge.group(position, groups.get(position, ()), writer.batches.get(position, ()))
    judge.finish()
    assert judge.faults == []
    assert judge.rows() == server.live()
    lost = Counter(
        (c.table, c.key, c.column, c.losing_value, c.losing_batch, c.winning_batch) for c in server.conflicts
    )
    assert Counter(Lost(*one)[1:] for one in judge.lost) == lost


def test_a_change_by_sql_that_is_not_in_the_log_as_it_was_written_is_noticed() -> None:
    at: At = ("list", "l1")
    before, after = {"id": "l1", "title": "a", "note": None}, {"id": "l1", "title": "b", "note": None}
    rules = {name: rules_of(name, Policy()) for name in TABLES}

    def faults(journal: dict[str, list[Step]], *batches: ServerBatch) -> list[str]:
        judge = Judge(TABLES, rules, nothing_broken, journal=journal)
        judge.preset({at: before})
        judge.group(1, (), batches)
        judge.finish()
        return judge.faults

    changed = ServerBatch("0" * 26, "7", [Logged(at, "update", {"title": "b"})])
    journal = {"7": [Step(at, before, after)]}
    assert faults(journal, changed) == []
    for lying, batches, said in [
        (journal, (), "is not in the log"),
        ({}, (changed,), "nobody committed"),
        (journal, (changed, changed), "twice"),
        ({"7": [Step(at, after, before)]}, (changed,), "the log has update"),
        ({"7": [Step(at, before, after), Step(at, after, before)]}, (changed,), "the log lacks"),
    ]:
        assert any(said in fault for fault in faults(lying, *batches)), said
