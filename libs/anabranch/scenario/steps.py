"""The steps of a scenario file, one function each, which carries it out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anabranch.scenario import expectations, model, syncing
from anabranch.scenario.cells import key_to_write, to_write
from anabranch.scenario.lake import compact, sweep
from anabranch.scenario.model import NODE_PREFIX, SERVER, Step
from anabranch.scenario.naming import by_sql_name, column_named
from anabranch.scenario.node import Node, RaisedError
from anabranch.scenario.verdicts import remember
from anabranch.scenario.world import FellShortError, NotYetError, World

_LEAVES = ("sync", "flush", "read", "login", "app", "crash", "copy", "rewind")
"""Steps that are refused to a node with another principal's file, or an old app, without the story ending there."""


def take(world: World, step: Step) -> None:
    """Do a step.

    Raises:
        FellShortError: something that must hold does not.
        RaisedError: a call on a node raised.
        NotYetError: it needs a part that does not exist yet.
    """
    try:
        _FUNCTIONS[step.name](world, step.given)
    except RaisedError as error:
        if step.name not in _LEAVES or not error.is_of_one_node:
            raise


# Writing

Mutation = dict[str, Any]


def _rows(world: World, node: str, kind: str, given: model.TableRows) -> Mutation:
    table = world.table(given.table, world.nodes[node])
    rows = [
        {name: to_write(world.conn, column_named(table, name), value) for name, value in row.items()}
        for row in world.ids.resolve(given.rows)
    ]
    return {"kind": kind, "table": given.table, "rows": rows}


def _keys(world: World, node: str, given: model.TableKeys) -> Mutation:
    table = world.table(given.table, world.nodes[node])
    keys = [key_to_write(world.conn, table, key) for key in world.ids.resolve(given.keys)]
    return {"kind": "delete", "table": given.table, "rows": keys}


def _write(world: World, name: str, mutations: Sequence[Mutation], batch: bool) -> None:
    node = world.nodes[name]
    try:
        world.attempt(node, "write", mutations=mutations, batch=batch)
    finally:
        node.look_for_batches()


def _insert(world: World, given: model.Insert) -> None:
    _write(world, given.node, [_rows(world, given.node, "insert", given)], batch=False)


def _update(world: World, given: model.Update) -> None:
    _write(world, given.node, [_rows(world, given.node, "update", given)], batch=False)


def _delete(world: World, given: model.Delete) -> None:
    _write(world, given.node, [_keys(world, given.node, given)], batch=False)


def _batch(world: World, given: model.BatchStep) -> None:
    mutations = []
    for mutation in given.mutations:
        if mutation.delete is not None:
            mutations.append(_keys(world, given.node, mutation.delete))
        for kind, rows in (("insert", mutation.insert), ("update", mutation.update)):
            if rows is not None:
                mutations.append(_rows(world, given.node, kind, rows))
    _write(world, given.node, mutations, batch=True)


def _fails(world: World, given: model.Fails) -> None:
    before = {name: world.attempt(node, "status", again=True)["queued"] for name, node in world.nodes.items()}
    try:
        _FUNCTIONS[given.step.name](world, given.step.given)
    except RaisedError as error:
        if _plain(given.error) not in _plain(f"{error} {error.code} {error.reason}"):
            raise FellShortError(f"it failed with {error}, which does not say {given.error!r}") from None
    else:
        raise FellShortError(f"{given.step.name} did not fail")
    after = {name: world.attempt(node, "status", again=True)["queued"] for name, node in world.nodes.items()}
    if any(after[name] > before[name] for name in before):
        raise FellShortError(f"{given.step.name} failed, and queued something all the same")


def _plain(text: str) -> str:
    return text.lower().replace("_", "").replace(" ", "")


# Syncing


def _sync(world: World, given: str | list[str]) -> None:
    syncing.sync(world, given)


def _flush(world: World, given: str | list[str]) -> None:
    syncing.sync(world, given, read=False)


def _read(world: World, given: str | list[str]) -> None:
    syncing.sync(world, given, flush=False)


def _send(world: World, given: model.Send) -> None:
    syncing.send(world, world.nodes[given.node], given.order)


def _resend(world: World, given: model.Resend) -> None:
    syncing.resend(world, world.nodes[given.node], given.batch, given.times)


# Networks, clocks, deaths


def _of_network(world: World, name: str, do: str, **arguments: Any) -> None:
    if name in world.nodes:
        world.attempt(world.nodes[name], do, again=True, **arguments)


def _offline(world: World, given: str) -> None:
    world.network(given).is_cut = True
    _of_network(world, given, "cut")


def _online(world: World, given: str) -> None:
    world.network(given).is_cut = False
    _of_network(world, given, "restore_network")


def _drop_ack(world: World, given: str) -> None:
    world.network(given).loses_answer = True
    _of_network(world, given, "lose_answer")


def _pull_cut(world: World, given: model.PullCut) -> None:
    world.network(given.node).cut_pull = given.after_rows
    _of_network(world, given.node, "cut_pull", after_rows=given.after_rows)


def _clock(world: World, given: model.ClockStep) -> None:
    if given.node == SERVER:
        world.server_ms = given.offset_ms
        world.set_clocks()
    else:
        world.set_node_clock(given.node, given.offset_ms)


def _advance(world: World, given: model.Advance) -> None:
    remember(world)
    world.advance(given.days)


def _wait_ms(world: World, given: int) -> None:
    time.sleep(given / 1000)


def _crash(world: World, given: str) -> None:
    if given.startswith(NODE_PREFIX):
        node = world.nodes[given.removeprefix(NODE_PREFIX)]
        node.kill()
        world.start(node)
    elif given in world.ground.stack.addresses:
        world.crash(given)
    else:
        raise NotYetError(f"crash: {given}")


def _crash_at(world: World, given: model.CrashAt) -> None:
    if given.process.startswith(NODE_PREFIX):
        world.nodes[given.process.removeprefix(NODE_PREFIX)].arm(given.point)
    else:
        world.arm(given.process, given.point)


# Devices


def _fresh(world: World, given: str) -> None:
    world.start(world.add_node(given))


def _copy(world: World, given: model.Copy) -> None:
    source = world.nodes[given.node]
    world.people.copy(given.node, given.as_)
    copied = world.add_node(given.as_)
    copied.offset_ms, copied.version = source.offset_ms, source.version
    copied.set_clock(world.common_ms)
    source.copy_file(copied.file)
    copied.forget_batches()
    world.start(copied)


def _save(world: World, given: model.Save) -> None:
    if given.what == SERVER:
        world.ground.save(given.as_)
        world.reconnect()
        return
    node = world.nodes[given.what]
    kept = world.folder / f"kept-{len(world.kept)}.db"
    node.copy_file(kept)
    world.kept[given.what, given.as_] = (kept, node.version)


def _rewind(world: World, given: model.Rewind) -> None:
    if given.what == SERVER:
        # A server that was taken back may decide anew, and its new verdicts are those that count.
        world.verdicts.clear()
        world.ground.rewind(given.to)
        world.reconnect()
        return
    node = world.nodes[given.what]
    node.close()
    kept, node.version = world.kept[given.what, given.to]
    node.put_back(kept)
    world.start(node)


def _claims(world: World, given: model.ClaimsStep) -> None:
    world.people.give(given.node, given.claims)
    if given.node in world.nodes:
        world.renew_token(world.nodes[given.node])


def _login(world: World, given: model.Login) -> None:
    node = world.nodes[given.node]
    node.close()
    world.people.log_in(given.node, given.principal, given.claims)
    world.renew_token(node)
    world.start(node)


def _app(world: World, given: model.App) -> None:
    node = world.nodes[given.node]
    node.close()
    node.options.pop("schema_version", None)
    if given.schema_ is not None:
        node.options["schema_version"] = given.schema_
    world.start(node)


def _foreign(world: World, given: model.Foreign) -> None:
    world.nodes[given.node].run_foreign(given.sql)


# The server's own


def _sql(world: World, given: str) -> None:
    world.run_sql(given)


def _register(world: World, given: model.Register) -> None:
    world.register(given.table, given.policy, given.audience)


def _compact(world: World, given: None) -> None:
    compact(world)


def _janitor(world: World, given: None) -> None:
    remember(world)
    sweep(world)


# Refused batches and lost values


def _dead(world: World, given: model.Dead) -> None:
    node = world.nodes[given.node]
    letters = world.attempt(node, "dead_letters", again=True)
    number = given.discard if given.replay is None else given.replay
    if number is None or number > len(letters):
        raise FellShortError(f"{node.name} has {len(letters)} dead letters, not {number}")
    letter = letters[number - 1]
    if given.discard is not None:
        world.attempt(node, "discard", letter_id=letter["id"])
        return
    try:
        world.attempt(node, "replay", letter_id=letter["id"], changes=_changes(world, node, letter, given.set or {}))
    finally:
        node.look_for_batches()


def _changes(world: World, node: Node, letter: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a dead letter's columns, as its tables' columns take them."""
    columns = {}
    for _, name, _ in reversed(letter["mutations"]):
        table = world.table(name, node)
        columns.update({} if table is None else by_sql_name(table))
    return {name: to_write(world.conn, columns.get(name), v) for name, v in world.ids.resolve(given).items()}


def _restore(world: World, given: model.Restore) -> None:
    node = world.nodes[given.node]
    try:
        found = world.attempt(node, "restore", number=given.conflict)
    finally:
        node.look_for_batches()
    if found is not None and given.conflict > found:
        raise FellShortError(f"there are {found} conflicts, not {given.conflict}")


def _check(world: World, given: model.Expectations) -> None:
    expectations.check(world, given)


_FUNCTIONS: Mapping[str, Callable[[World, Any], None]] = {
    "insert": _insert,
    "update": _update,
    "delete": _delete,
    "batch": _batch,
    "fails": _fails,
    "sync": _sync,
    "flush": _flush,
    "read": _read,
    "offline": _offline,
    "online": _online,
    "send": _send,
    "resend": _resend,
    "drop_ack": _drop_ack,
    "clock": _clock,
    "advance": _advance,
    "crash": _crash,
    "crash_at": _crash_at,
    "copy": _copy,
    "save": _save,
    "rewind": _rewind,
    "sql": _sql,
    "register": _register,
    "app": _app,
    "foreign": _foreign,
    "fresh": _fresh,
    "pull_cut": _pull_cut,
    "claims": _claims,
    "login": _login,
    "compact": _compact,
    "janitor": _janitor,
    "dead": _dead,
    "restore": _restore,
    "check": _check,
    "wait_ms": _wait_ms,
}


def start_nodes(world: World, names: Iterable[str]) -> list[Node]:
    """The nodes that a file begins with, started, online."""
    nodes = [world.add_node(name) for name in names]
    for node in nodes:
        world.start(node)
        if not node.started:
            raise FellShortError(f"{node.name} could not take its first pull")
    return nodes
