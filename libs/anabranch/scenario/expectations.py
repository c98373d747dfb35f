"""The expectations, one function each, which checks that it is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from anabranch.scenario.audiences import (
    Sum,
    audience_sums,
    kept_sums,
    read_set,
    restricted_tables,
    sum_differences,
    visible_sum,
)
from anabranch.scenario.cells import accepted, cast, encoded, named_key
from anabranch.scenario.conflicts import Lost, conflicts
from anabranch.scenario.lake import compact, lake_differences, published_positions
from anabranch.scenario.model import ConflictSpec, DeadSpec, Expectations, LogSpec
from anabranch.scenario.naming import by_sql_name, every_column
from anabranch.scenario.node import Node
from anabranch.scenario.rows import check_node, check_same, check_server, match
from anabranch.scenario.syncing import drained
from anabranch.scenario.tables_seen import tables_of
from anabranch.scenario.verdicts import verdicts_of
from anabranch.scenario.world import FellShortError, NotYetError, World
from anabranch.store.catalog.sums import scan_sum, sum_to_bytes
from anabranch.v1 import errors_pb2, verdict_pb2
from anabranch.values import Column, Table, key_text
from anabranch.values.sqlite import loader
from anabranch.wire.enum_names import enum_name

_LOGGED = """
select count(distinct (l.position, l.batch_id)) from anabranch.log l
join anabranch.databases d on d.id = l.database_id where d.name = %s and l.node_id <> 'server'
"""
_SUMS = """
select t.name, s.row_count, s.row_hash from anabranch.table_sums s
join anabranch.synced_tables t on t.id = s.table_id join anabranch.databases d on d.id = t.database_id where d.name = %s
"""
_DEVICE_SUMS = "SELECT tbl, audience, count, hash FROM _db_audience_sums"


def check(world: World, given: Expectations) -> None:
    """Check every expectation given. Raises FellShortError with all that do not hold, NotYetError."""
    wrong: list[str] = []
    later: list[NotYetError] = []
    for name, function in _FUNCTIONS.items():
        wanted = getattr(given, name)
        if wanted is None:
            continue
        try:
            wrong += [f"{name}: {text}" for text in function(world, wanted)]
        except NotYetError as error:
            later.append(error)
    if wrong:
        raise FellShortError("; ".join([*wrong, *map(str, later)]))
    if later:
        raise later[0]


def _server(world: World, wanted: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    for table, rows in wanted.items():
        yield from (f"{table}: {text}" for text in check_server(world, table, rows))


def _nodes(world: World, wanted: Mapping[str, Any]) -> Iterator[str]:
    for name, given in wanted.items():
        node = world.nodes[name]
        if given == "same":
            yield from (f"{name}: {text}" for text in check_same(world, node))
            continue
        for table, rows in given.items():
            yield from (f"{name}: {table}: {text}" for text in check_node(world, node, table, rows))


def _queue(world: World, wanted: Mapping[str, int]) -> Iterator[str]:
    yield from _counts(world, wanted, "queued", "batches left")


def _pulls(world: World, wanted: Mapping[str, int]) -> Iterator[str]:
    yield from _counts(world, wanted, "pulls", "snapshots taken")


def _counts(world: World, wanted: Mapping[str, int], name: str, what: str) -> Iterator[str]:
    for node, count in wanted.items():
        found = _status(world, node)[name]
        if found != count:
            yield f"{node}: {found} {what}, not {count}"


def _status(world: World, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = world.attempt(world.nodes[name], "status", again=True)
    return found


def _dead(world: World, wanted: Mapping[str, Sequence[DeadSpec]]) -> Iterator[str]:
    for name, specs in wanted.items():
        letters = world.attempt(world.nodes[name], "dead_letters", again=True)
        told = ", ".join(f"{x['reason']} {x['table']} ({x['message']})" for x in letters) or "none"
        if len(letters) != len(specs):
            yield f"{name}: {len(letters)} dead letters, not {len(specs)}: {told}"
            continue
        for number, (spec, letter) in enumerate(zip(specs, letters, strict=True), 1):
            for text in _letter(world, world.nodes[name], spec, letter):
                yield f"{name}: letter {number}: {text}"


def _letter(world: World, node: Node, spec: DeadSpec, letter: Mapping[str, Any]) -> Iterator[str]:
    table = world.table(letter["table"], node)
    for field in sorted(spec.model_fields_set):
        wanted, found = world.ids.resolve(getattr(spec, field)), letter[field]
        if field == "key":
            if table is None or not found or _letter_key(table, found) != named_key(world.conn, table, wanted):
                yield f"its key is {found}, not {wanted}"
        elif field in ("server_row", "server_row_now"):
            yield from _letter_row(world, table, wanted, found)
        elif found != wanted:
            yield f"its {field} is {found!r}, not {wanted!r}"


def _letter_key(table: Table, key: Sequence[Any]) -> str:
    loaders = [loader(table.by_name[name]) for name in table.key_columns]
    return key_text([cell if load is None else load(cell) for load, cell in zip(loaders, key, strict=True)])


def _letter_row(world: World, table: Table | None, wanted: Any, found: Any) -> Iterator[str]:
    if wanted is None or found is None or table is None:
        if wanted is not found:
            yield f"its server row is {found}, not {wanted}"
        return
    named = by_sql_name(table)
    columns = [named[name] for name in wanted]
    for column, forms in zip(columns, accepted(world.conn, columns, list(wanted.values())), strict=True):
        load = loader(column)
        stored = found.get(column.sql_name)
        if encoded(column, stored if load is None else load(stored)) not in forms:
            yield f"its server row has {column.sql_name} {stored!r}, not {wanted[column.sql_name]!r}"


def _conflicts(world: World, wanted: Sequence[ConflictSpec]) -> Iterator[str]:
    found = [_lost(one) for one in conflicts(world)]
    specs = [_lost_spec(world, spec) for spec in wanted]
    names = [str(spec.model_dump(exclude_unset=True)) for spec in wanted]
    yield from (text.replace("row", "conflict") for text in match(specs, found, names))


def _lost(one: Lost) -> dict[str, Any]:
    loser = b"" if one.column is None else encoded(one.column, one.value)
    return {
        "table": one.table.sql_name,
        "key": one.key,
        "column": "" if one.column is None else one.column.sql_name,
        "loser": loser,
        "cause": one.cause,
    }


def _lost_spec(world: World, spec: ConflictSpec) -> dict[str, set[Any]]:
    out: dict[str, set[Any]] = {
        name: {getattr(spec, name)} for name in ("table", "column", "cause") if name in spec.model_fields_set
    }
    tables = [table for table in world.naming.last().values() if spec.table in (None, table.sql_name)]
    if "key" in spec.model_fields_set:
        out["key"] = {named_key(world.conn, table, world.ids.resolve(spec.key)) for table in tables}
    if "loser" in spec.model_fields_set:
        value = world.ids.resolve(spec.loser)
        columns = [c for table in tables for c in every_column(table).values() if spec.column in (None, c.sql_name)]
        out["loser"] = {form for column in columns for form in _forms(world, column, value)}
        if spec.column == "":
            out["loser"] = {b""}
    return out


def _forms(world: World, column: Column, value: Any) -> Iterator[bytes]:
    """The encoding of a value in a column; none where the column can't have it: another of the name may."""
    with suppress(world.conn.DataError):
        yield encoded(column, cast(world.conn, [column], [value])[0])


def _status_name(verdict: verdict_pb2.Verdict | None) -> str:
    if verdict is None:
        return "PENDING"
    return enum_name(verdict_pb2.VerdictStatus, verdict.status)


def _verdicts(world: World, wanted: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, given in wanted.items():
        verdicts = verdicts_of(world, world.nodes[name])
        found = [_status_name(verdict) for verdict in verdicts]
        if found != list(given):
            why = [enum_name(errors_pb2.Reason, v.reason) for v in verdicts if v and v.reason]
            reasons = f" ({', '.join(why)})" if why else ""
            yield f"{name}: {', '.join(found) or 'no batches'}{reasons}, not {', '.join(given)}"


def _outcomes(world: World, wanted: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[str]:
    for name, given in wanted.items():
        found = [_outcome_names(verdict) for verdict in verdicts_of(world, world.nodes[name])]
        # A rejected batch has no outcomes; a file may also write REJECTED in their place.
        meant = [[] if set(one) == {"REJECTED"} else list(one) for one in given]
        if found != meant:
            yield f"{name}: {found}, not {meant}"


def _outcome_names(verdict: verdict_pb2.Verdict | None) -> list[str]:
    if verdict is None or verdict.status != verdict_pb2.VERDICT_STATUS_APPLIED:
        return []
    return [enum_name(verdict_pb2.Outcome, m.outcome) for m in verdict.mutations]


def _log(world: World, wanted: LogSpec) -> Iterator[str]:
    row = world.conn.execute(_LOGGED, (world.name,)).fetchone()
    found = row[0] if row else 0
    if found != wanted.batches:
        yield f"{found} accepted batches, not {wanted.batches}"


def _sums(world: World, wanted: str) -> Iterator[str]:
    database = world.database
    scanned = {}
    for name, table in database.tables.items():
        with world.conn.transaction():
            count, total = scan_sum(world.conn, world.name, table)
        scanned[name] = (count, sum_to_bytes(total))
    kept = {name: (count, bytes(total)) for name, count, total in world.conn.execute(_SUMS, (world.name,))}
    yield from _differences("the server's kept sum", kept, scanned)
    by_audience = {name: audience_sums(world, table) for name, table in restricted_tables(world).items()}
    kept_by_audience = kept_sums(world)
    for name in sorted(by_audience.keys() | kept_by_audience.keys()):
        what = f"the server's kept sum of {name}"
        yield from sum_differences(what, kept_by_audience.get(name, {}), by_audience.get(name, {}))
    for name, node in world.nodes.items():
        seen = {one.here.sql_name: one.now for one in tables_of(world, node)}
        has = {table.name: table for table in seen.values()}
        kept = world.attempt(node, "sums", again=True)
        sums = {seen[table].name if table in seen else table: tuple(s) for table, s in kept.items()}
        visible = {table: visible_sum(world, node, has[table]) for table in has if table in by_audience}
        yield from _differences(f"{name}'s sum", sums, {table: visible.get(table, scanned[table]) for table in has})
        if visible:
            yield from _sums_by_audience(world, node, {table: by_audience[table] for table in visible})
        disagreeing = _status(world, name)["disagreeing"]
        if disagreeing:
            yield f"{name} itself says that {', '.join(disagreeing)} disagree"


def _sums_by_audience(world: World, node: Node, on_server: Mapping[str, Mapping[str, Sum]]) -> Iterator[str]:
    """Compare a node's sums with those of the audiences that it may see, and see that it has no others."""
    audiences = read_set(world, node)
    found: dict[str, dict[str, Sum]] = {}
    with node.reader() as conn:
        for table, audience, count, total in conn.execute(_DEVICE_SUMS):
            found.setdefault(table, {})[audience] = (count, total)
    for table in sorted(found.keys() | on_server.keys()):
        here = found.get(table, {})
        there = {audience: s for audience, s in on_server.get(table, {}).items() if audience in audiences}
        yield from sum_differences(f"{node.name}'s sum of {table}", here, there)


def _differences(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for table in sorted(found.keys() | wanted.keys()):
        if found.get(table) != wanted.get(table):
            here, there = found.get(table, (0, b"")), wanted.get(table, (0, b""))
            shown, stored = (f"{count} {total.hex()}" for count, total in (here, there))
            yield f"{what} of {table} is {shown}, its rows on the server's {stored}"


def _pulled(world: World, wanted: Mapping[str, str]) -> Iterator[str]:
    """Check the source of a node's last pull: rows from Parquet have the position of a published run."""
    published = published_positions(world)
    for name, source in wanted.items():
        with world.nodes[name].reader() as file:
            first = {position for (position,) in file.execute("SELECT first_ms FROM _db_tables WHERE stage = 'live'")}
        found = "parquet" if first and first <= published else "postgres"
        if found != source:
            yield f"{name}'s rows are from {found}, as of {sorted(first)}; published is {sorted(published)}"


def _parquet(world: World, wanted: str) -> Iterator[str]:
    drained(world)
    compact(world)
    yield from lake_differences(world)


_FUNCTIONS: Mapping[str, Callable[[World, Any], Any]] = {
    "server": _server,
    "nodes": _nodes,
    "dead": _dead,
    "queue": _queue,
    "conflicts": _conflicts,
    "verdicts": _verdicts,
    "outcomes": _outcomes,
    "log": _log,
    "pulls": _pulls,
    "pulled": _pulled,
    "sums": _sums,
    "parquet": _parquet,
}
assert set(_FUNCTIONS) == set(Expectations.model_fields) - {"as_is"}, "every expectation has its function"
