"""The tables of the file from the server's Describe.

Describe may be ahead of the file: it says what the tables are now, while the log up to now is still to be read. It must
not overtake the log: effects of the old shape are on their way, and the schema change among them. So, where a log will
bring what differs (the table's ``changed_position`` is beyond the cursor, and nothing is about to be pulled anew):

* a live table keeps its columns and names until then; policies, and what is surely refused, are taken at once;
* a table that the file does not have is left to the log, which says whether it came with the change;
* a table that Describe does not have is kept until the log has been read up to Describe's moment, as it may be dropped
  there (``absent_ms``).

Whatever was left so is looked at once more when the cursor is there (``describe_at``). All else is done at once: a
table whose rows are not alike any more is pulled.

For an app that is tied to a schema version the server is asked twice, for its tables of today and for those as they
were then; from the second the names are taken (``views``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from anabranch.client.errors import CallFailed
from anabranch.client.events import Schema, State
from anabranch.client.file import choice as choosing
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.device_table import DeviceTable, device_table
from anabranch.client.file.state import FileState
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.schema.alter import become, pull_anew, set_aside_changed
from anabranch.client.schema.held import Held, all_held, held, hold, hold_absent
from anabranch.client.schema.kinds import unreadable
from anabranch.client.schema.make import create, find_pending, forget_queued, give_up, refusal
from anabranch.client.schema.names import make_room, names_of, not_renamed, under_name
from anabranch.client.schema.own_objects import drop_broken_triggers
from anabranch.client.schema.views import Naming, columns_of, is_told_apart, refreshed, same_columns, shape, view_of
from anabranch.v1 import snapshot_pb2

Ask = Callable[[snapshot_pb2.DescribeRequest], snapshot_pb2.DescribeResponse]
_ATTEMPTS = 3


@dataclass(frozen=True)
class Described:
    """The server's tables. ``namings``: what an app that is tied to a schema version knows of them, by identity; None
    for one that takes the names of the day."""

    response: snapshot_pb2.DescribeResponse
    namings: Mapping[str, Naming] | None = None

    def view(self, today: snapshot_pb2.Table) -> snapshot_pb2.Table | None:
        """A table as the app sees it; None where it does not know it."""
        if self.namings is None:
            return view_of(today, None)
        naming = self.namings.get(today.name)
        return None if naming is None else view_of(today, naming)


def ask_for_all(current: FileState, ask: Ask) -> Described:
    """Ask the server for its tables.

    Raises:
        CallFailed: the server can't be asked, or (AppOutdated) can't tell the app's schema version any more.
    """
    request = snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=current.reader_state)
    for _ in range(_ATTEMPTS):
        response = ask(request)
        if not 0 < current.app_version < response.version:
            return Described(response)
        of_then = snapshot_pb2.DescribeRequest()
        of_then.CopyFrom(request)
        of_then.app_version = current.app_version
        then = ask(of_then)
        if then.version == response.version:
            return Described(response, {t.name: Naming(t) for t in then.tables if not t.hidden})
    raise CallFailed("ABORTED", "", "the schema changes faster than it is told", again=True)


@dataclass(frozen=True)
class TableStep:
    """The part of a Describe that is about one table. ``held``: as the file has it; None where it has none. ``view``
    and ``today``: as it is to be; of one that is given up as it was."""

    action: Literal["make", "keep", "pull", "give up"]
    held: Held | None
    view: snapshot_pb2.Table
    today: snapshot_pb2.Table

    @property
    def alters(self) -> bool:
        """Whether the file's tables are others afterwards."""
        return self.action != "keep" or self.held is None or shape(self.held.view) != shape(self.view)


@dataclass(frozen=True)
class DescribePlan:
    """The steps of one Describe, and tables that are told of because this release can't hold them. ``until``: the
    position up to which the log brings what was left to it, 0 where nothing was; ``absent``: positions of tables that
    may be dropped there."""

    steps: Sequence[TableStep]
    aside: Sequence[State]
    until: int
    absent: Mapping[str, int]

    def names(self) -> tuple[str, ...]:
        """The names in SQL of the tables that are altered, as they are before it."""
        altered = (step for step in self.steps if step.alters)
        return tuple((s.view.sql_name or s.view.name) if s.held is None else s.held.sql_name for s in altered)


def plan_of(conn: sqlite3.Connection, described: Described, state: FileState) -> DescribePlan:
    """The work to be done in a file."""
    known = all_held(conn)
    plan = _as_described(known, described, state)
    going = [step.view.sql_name or step.view.name for step in plan.steps if step.action == "give up"]
    wanted = {s.view.name: s.view.sql_name or s.view.name for s in plan.steps if s.action != "give up"}
    refused = names_of(conn, known, wanted, going).refused
    steps: list[TableStep] = []
    aside = list(plan.aside)
    for step in plan.steps:
        reason = refused.get(step.view.name, "") if step.action != "give up" else ""
        if step.held is None and (reason := reason or refusal(device_table(step.view))):
            aside.append(State("set_aside", reason, wanted[step.view.name]))
            continue
        if step.held is not None and reason:
            aside.append(not_renamed(step.held.sql_name, wanted[step.view.name], reason))
            step = replace(step, view=under_name(step.view, step.held.sql_name))
        steps.append(step)
    return replace(plan, steps=steps, aside=aside)


def _as_described(known: Mapping[str, Held], described: Described, state: FileState) -> DescribePlan:
    """The work in a file that has the tables ``known``, and room for all names."""
    # Where all is about to be pulled there is no log that would bring anything.
    at_once = not state.pulls or bool(state.snapshot_due)
    missing = dict(known)
    steps: list[TableStep] = []
    aside: list[State] = []
    until = 0
    for message in described.response.tables:
        name, sql_name = message.name, message.sql_name or message.name
        if name not in known and not choosing.is_chosen(state.choice, name, sql_name):
            continue
        one, view = missing.get(name), described.view(message)
        ahead = not at_once and message.changed_position > state.cursor_ms
        ahead &= one is None or (one.stage == "live" and one.today.changed_position < message.changed_position)
        if ahead and view is not None:
            until = max(until, message.changed_position)
        if (told := unreadable(message)) is not None:
            missing.pop(name, None)
            if not ahead:
                # Rows that would not be kept up to date are not shown.
                aside.append(told)
                steps += [] if one is None else [_give_up(one)]
        elif view is not None:
            missing.pop(name, None)
            if one is not None or not ahead:
                steps.append(_step(one, message, view, ahead, described, state))
    absent: dict[str, int] = {}
    for one in missing.values():
        position = one.absent_ms or described.response.state.settled.server_timestamp_ms
        if not at_once and one.stage == "live" and position > state.cursor_ms:
            absent[one.name] = position
        else:
            steps.append(_give_up(one))
    return DescribePlan(steps, aside, max(until, *absent.values(), 0), absent)


def _give_up(one: Held) -> TableStep:
    return TableStep("give up", one, one.view, one.today)


def _step(
    one: Held | None,
    message: snapshot_pb2.Table,
    view: snapshot_pb2.Table,
    ahead: bool,
    described: Described,
    state: FileState,
) -> TableStep:
    if one is None:
        return TableStep("make", None, view, message)
    if ahead and one.today.restricted == message.restricted:
        today = refreshed(one.today, message)
        return TableStep("keep", one, view_of(today, _names_meanwhile(one, described, state)), today)
    if same_columns(one.today, message):
        return TableStep("keep", one, view, message)
    return TableStep("pull", one, view, message)


def _names_meanwhile(one: Held, described: Described, state: FileState) -> Naming:
    """The names of a table whose change the log is still to bring: those that it has, or those of the app's version,
    where the file has come beyond that."""
    if described.namings is not None and state.app_version <= state.ddl_version:
        return described.namings.get(one.name, one.naming)
    return one.naming


def about_to_apply(file: DeviceFile, described: Described) -> Schema | None:
    """The event for what a Describe is about to alter; None where it alters nothing, or where there is nothing yet."""
    current = file.current()
    names = plan_of(file.reader(), described, current).names() if current.pulls else ()
    return Schema(described.response.version, names, "before") if names else None


def apply_description(
    tx: Tx, described: Described, pendings: Pendings, told: Collection[State] = ()
) -> Collection[State]:
    """Make the tables that are new, change those that have changed, drop those that are no longer synced; rows that are
    no longer shown because of it are reported as changes. A new table, and one whose rows have changed, waits to be
    pulled. Tables that the device has not chosen are passed over. Gives the states of tables that the file can't hold,
    or not under their names; those ``told`` before are not told again."""
    response, state = described.response, tx.state
    plan = plan_of(tx.conn, described, state)
    names = plan.names()
    pendings.forget_if_undone(tx)
    tx.events += [one for one in plan.aside if one not in told]
    made: dict[str, DeviceTable] = {}
    # Tables that go, and those that get other names, make room for those that come.
    _carry_out_all(tx, [step for step in plan.steps if step.action == "give up"], pendings, made)
    stay = [step for step in plan.steps if step.action != "give up"]
    held = {step.held.name: step.held for step in stay if step.held is not None}
    make_room(tx, held, {step.view.name: step.view.sql_name or step.view.name for step in stay})
    stay = [replace(step, held=held.get(step.view.name)) for step in stay]
    _carry_out_all(tx, sorted(stay, key=lambda step: step.held is None), pendings, made)
    if made:
        tx.tables_changed()
        find_pending(tx, made)
    if names:
        drop_broken_triggers(tx)
    if state.choice is not None:
        there = {name for message in response.tables for name in (message.name, message.sql_name)}
        for name in sorted(state.choice - there):
            tx.events.append(State("not_synced", "the server has no synced table of that name", name))
    hold_absent(tx, plan.absent)
    tx.set(
        schema_version=response.state.schema_version,
        limits=response.limits.SerializeToString(),
        policy=response.policy.SerializeToString(),
        describe_due=0,
        needs_version=0,
        describe_at=plan.until,
        **({} if plan.until else {"ddl_version": response.version}),
    )
    if names and state.pulls:
        tx.events.append(Schema(response.version, names, "after"))
    return plan.aside


def _carry_out_all(tx: Tx, steps: Sequence[TableStep], pendings: Pendings, made: dict[str, DeviceTable]) -> None:
    for step in steps:
        _carry_out(tx, step, pendings, made)


def _carry_out(tx: Tx, step: TableStep, pendings: Pendings, made: dict[str, DeviceTable]) -> None:
    one = step.held
    if one is None:
        table = create(tx, step.view)
        if table is not None:
            hold(tx, step.view, step.today)
            made[table.name] = table
    elif step.action == "give up":
        give_up(tx, tx.tables[one.name])
        forget_queued(tx, one.name)
        tx.tables_changed()
    elif step.action == "pull":
        _pull(tx, one, step, pendings)
    elif (step.view, step.today) != (one.view, one.today):
        become(tx, one, step.view, step.today, pendings)


def _pull(tx: Tx, one: Held, step: TableStep, pendings: Pendings) -> None:
    """Let a table be pulled whose rows are others than they were. It shows those of before meanwhile where columns came
    alone; for any other change it is made anew: so also where it was not restricted before, as some of the rows may be
    for others alone."""
    before, now = list(columns_of(one.today).items()), list(columns_of(step.today).items())
    if is_told_apart(one.today, step.today) or now[: len(before)] != before:
        pull_anew(tx, one, step.view, step.today)
        return
    table = become(
        tx, replace(one, stage="aside" if one.stage == "live" else one.stage), step.view, step.today, pendings
    )
    if table is not None:
        set_aside_changed(tx, table)


def ask(tx: Tx, name: str, describe: Ask) -> DeviceTable | None:
    """Ask the server for its present description of a table and keep what it says of values that are surely refused, if
    its columns are still those of the file; None if they are not, or if the server can't be asked. The reader notices
    all other changes."""
    try:
        response = describe(snapshot_pb2.DescribeRequest(db_name=tx.state.db_name, node_state=tx.state.reader_state))
    except CallFailed:
        return None
    message = next((table for table in response.tables if table.name == name), None)
    one = held(tx.conn, name)
    if message is None or one is None or unreadable(message) is not None or not same_columns(one.today, message):
        return None
    today = refreshed(one.today, message)
    view = view_of(today, one.naming)
    if hold(tx, view, today):
        tx.tables_changed()
    return tx.tables[name]
