"""Syncs of nodes with the server: only on a step of the story, sending and reading each on its own or both."""

from __future__ import annotations

import time
from collections.abc import Sequence

from anabranch.scenario.model import ALL
from anabranch.scenario.node import Made, Node, RaisedError
from anabranch.scenario.world import FellShortError, World

_STANDING = ("node_id", "cursor", "unsent", "queued", "dead", "pulls", "disagreeing")
_ROUNDS = 20
_A_LITTLE_S = 5.0
_LONGEST_WAIT_S = 60.0
_PAUSE_S = 0.1
_TRIES = 50
_SEND_S = 0.4
_SENDS = 5
_DRAIN_S = 10.0
_DRAIN_BY_MORTALS_S = 40.0
"""Where services were armed to die: one that is started again on a busy machine takes its time."""
_DRAIN_LOOK_S = 0.02

# Captured changes, those of the schema among them, that are in no group yet. The head does not show them.
_CAPTURED = """
select exists (select 1 from anabranch.captured c join anabranch.databases d on d.id = c.database_id where d.name = %s)
"""
_SENT = """
select i.batch_id from anabranch.inbox i join anabranch.databases d on d.id = i.database_id
where d.name = %(db)s and i.batch_id = any(%(ids)s)
union select b.batch_id from anabranch.batches b join anabranch.databases d on d.id = b.database_id
where d.name = %(db)s and b.batch_id = any(%(ids)s)
"""


def named(world: World, given: str | Sequence[str]) -> list[Node]:
    """The nodes that a step names."""
    names = [given] if isinstance(given, str) else given
    return [node for name in names for node in (world.online() if name == ALL else [world.nodes[name]])]


def sync(world: World, given: str | Sequence[str], *, flush: bool = True, read: bool = True) -> None:
    """Each in turn sends and reads; ``all`` again until nothing changes. Raises RaisedError, FellShortError."""
    names = [given] if isinstance(given, str) else given
    refused: list[RaisedError] = []
    for name in names:
        if name == ALL and flush and read:
            sync_all(world)
            continue
        for node in named(world, name):
            try:
                sync_node(world, node, flush=flush, read=read)
            except RaisedError as error:
                # The server refuses this node as it is: the nodes after it are synced all the same.
                if not error.is_of_one_node:
                    raise
                refused.append(error)
    if refused:
        raise refused[0]


def sync_all(world: World) -> None:
    """Every node that has a network, until nothing changes. Raises RaisedError, FellShortError."""
    refused: list[RaisedError] = []
    before: dict[str, object] = {}
    for _ in range(_ROUNDS):
        before = _state(world)
        refused.clear()
        for node in world.online():
            try:
                sync_node(world, node)
            except RaisedError as error:
                if not error.is_of_one_node:
                    raise
                refused.append(error)
        if _state(world) == before:
            if refused:
                raise refused[0]
            return
    changes = "; ".join(
        f"{name}: {before[name]} to {now}" for name, now in _state(world).items() if before[name] != now
    )
    raise FellShortError(f"something still changes after {_ROUNDS} rounds of syncing: {changes}")


def _state(world: World) -> dict[str, object]:
    return {name: _standing(world, node) for name, node in world.nodes.items()}


def _standing(world: World, node: Node) -> dict[str, object]:
    """The fields of a node's status that only a sync or a write changes."""
    status = world.attempt(node, "status", again=True)
    return {name: status[name] for name in _STANDING}


def sync_node(world: World, node: Node, *, flush: bool = True, read: bool = True) -> None:
    """Send the queue and wait for the verdicts, the park time and a little at most; then read the log to its head.
    While the network is cut it has no effect, and nothing is lost. Raises RaisedError, FellShortError."""
    world.left_s()
    if node.network.is_cut:
        _sync_in_vain(world, node)
        return
    world.start(node)
    if not node.started:
        return
    if flush:
        _flush(world, node)
    if read:
        drained(world)
        version = world.database.ddl_version
        _again(world, node, "read")
        node.version = version


def _sync_in_vain(world: World, node: Node) -> None:
    if not node.started:
        return
    before = _standing(world, node)
    for do, arguments in (("flush", {"timeout_s": 1.0}), ("read", {})):
        try:
            world.attempt(node, do, again=True, **arguments)
        except RaisedError as error:
            if error.code != "UNAVAILABLE":
                raise
    after = _standing(world, node)
    if after != before:
        raise FellShortError(f"{node.name}: a sync without a network changed {before} to {after}")


def _flush(world: World, node: Node) -> None:
    wait_s = min(world.park_ms / 1000 + _A_LITTLE_S, _LONGEST_WAIT_S, world.left_s())
    deadline = time.monotonic() + wait_s
    _again(world, node, "flush", deadline)


def _again(world: World, node: Node, do: str, deadline: float | None = None) -> None:
    """Make a call of the sync, again where a service was just dead. The call is not repeated for an answer that the
    story has lost, nor for a pull that it has cut."""
    for _ in range(_TRIES):
        lost, cut = node.network.loses_answer, node.network.cut_pull
        arguments = {} if deadline is None else {"timeout_s": max(0.5, deadline - time.monotonic())}
        try:
            world.attempt(node, do, again=True, **arguments)
            return
        except RaisedError as error:
            if (lost and not node.network.loses_answer) or (cut is not None and node.network.cut_pull is None):
                return
            if not error.again or (deadline is not None and time.monotonic() > deadline):
                raise
        world.heal()
        # The channel to a service that was dead reconnects by itself, a little later.
        time.sleep(_PAUSE_S)
    raise FellShortError(f"{node.name}: {do} found no service in {_TRIES} tries")


def drained(world: World) -> None:
    """Wait until captured changes are in the log, for a while; changes that take longer are not waited for."""
    deadline = time.monotonic() + (_DRAIN_BY_MORTALS_S if world.has_armed else _DRAIN_S)
    while time.monotonic() < deadline:
        if world.conn.execute(_CAPTURED, (world.name,)).fetchone() == (False,):
            return
        time.sleep(_DRAIN_LOOK_S)


def send(world: World, node: Node, order: Sequence[int]) -> None:
    """Send unsent batches, by number, one call each, in that order, without waiting for verdicts. A batch that the
    server has is not unsent, whether or not its verdict has come back. Raises FellShortError."""
    waiting = node.unsent()
    sent = {batch_id for (batch_id,) in world.conn.execute(_SENT, {"db": world.name, "ids": waiting}).fetchall()}
    unsent = [batch_id for batch_id in waiting if batch_id not in sent]
    if max(order) > len(unsent):
        raise FellShortError(f"{node.name} has {len(unsent)} unsent batches, not {max(order)}")
    if node.network.is_cut:
        return
    for number in order:
        _send_one(world, node, unsent[number - 1])


def _send_one(world: World, node: Node, batch_id: str) -> None:
    for attempt in range(_SENDS):
        lost = node.network.loses_answer
        try:
            world.attempt(node, "send_one", again=True, batch_id=batch_id, timeout_s=_SEND_S * 2**attempt)
        except RaisedError as error:
            if not error.again:
                raise
            if lost and not node.network.loses_answer:
                return
            world.heal()
        # On a busy machine a call may time out before the server has taken the batch in.
        if world.conn.execute(_SENT, {"db": world.name, "ids": [batch_id]}).fetchone() is not None:
            return
    raise FellShortError(f"{node.name}: the server did not take in the batch in {_SENDS} calls")


def resend(world: World, node: Node, number: int, times: int) -> None:
    """Send a batch again, the bytes as made. Every answer must be the verdict that it has. Raises FellShortError."""
    if number > len(node.made):
        raise FellShortError(f"{node.name} has made {len(node.made)} batches, not {number}")
    if node.network.is_cut:
        return
    world.start(node)
    made = node.made[number - 1]
    answers: list[str] = []
    for _ in range(times):
        answers += _resend_once(world, node, made)
    decided = [answer for answer in answers if "PENDING" not in answer]
    if len(set(decided)) > 1:
        raise FellShortError(f"{node.name}: batch {number}, sent again, was answered {', '.join(decided)}")


def _resend_once(world: World, node: Node, made: Made) -> list[str]:
    for _ in range(_SENDS):
        lost = node.network.loses_answer
        try:
            answers: list[str] | None = world.attempt(
                node, "resend", again=True, batch_id=made.id, payload=made.payload, basis=made.basis
            )
            return answers or []
        except RaisedError as error:
            if lost and not node.network.loses_answer:
                return []
            if not error.again:
                raise
        world.heal()
        time.sleep(_PAUSE_S)
    raise FellShortError(f"{node.name}: the batch could not be sent again in {_SENDS} calls")
