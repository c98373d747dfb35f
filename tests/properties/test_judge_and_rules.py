"""The fault run's judge and ``anabranch.merge``, which share no code, on the same small histories: every verdict, row
and conflict alike. Thousands of histories with late batches, clocks that are off and rows of all ages; so that what a
fault run finds is a fault of what stands around the rules, and a rule that both had wrong would have to be wrong twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.merge import Policy
from anabranch.schema import Cell, Column, Kind, Table
from anabranch.testkit.memory_server import MemoryServer
from anabranch.testkit.memory_server import Sent as MemorySent
from anabranch.testkit.memory_story import LOOSE, SLOT_MS, Making, makings, new_server, tell
from anabranch.testkit.torture.functions import FUNCTIONS
from anabranch.testkit.torture.judge import Judge
from anabranch.testkit.torture.registers import At, Lost, Rules, Sent
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2, verdict_pb2
from anabranch.wire.values import column_writer

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


@given(
    story=makings(),
    policy=policies,
    park_ms=st.sampled_from([0, 2 * SLOT_MS, 1000 * SLOT_MS]),
    clocks=st.tuples(st.integers(-5000, 5000), st.integers(-5000, 5000)),
)
@settings(deadline=None, max_examples=2_000)
def test_the_judge_and_the_rules_decide_alike(
    story: list[Making], policy: Policy, park_ms: int, clocks: tuple[int, int]
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
    _, arrivals = tell(server, story, clocks_ms=clocks)
    groups: dict[int, list[tuple[Sent, verdict_pb2.Verdict]]] = {}
    for sent in {arrival.sent.id: arrival.sent for arrival in arrivals}.values():
        verdict = verdict_of(server, sent.id)
        groups.setdefault(verdict.position, []).append((Sent(sent.id, sent.node, sent.basis, payload(sent)), verdict))
    for position in sorted(groups):
        judge.group(position, groups[position])
    assert judge.faults == []
    assert judge.rows() == server.live()
    lost = Counter(
        (c.table, c.key, c.column, c.losing_value, c.losing_batch, c.winning_batch) for c in server.conflicts
    )
    assert Counter(Lost(*one)[1:] for one in judge.lost) == lost
