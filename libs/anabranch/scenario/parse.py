"""Parse a scenario file strictly, so that nothing in it is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from anabranch.scenario.model import ALL, NODE_PREFIX, SERVER, SERVICES, Scenario, Step
from anabranch.scenario.values import FormatError
from anabranch.scenario.yaml_text import load

_NODE_STEPS = ("offline", "online", "drop_ack")
_SYNC_STEPS = ("sync", "flush", "read")


def read_scenario(file: Path) -> Scenario:
    """The scenario in ``file``. Raises FormatError, and OSError where it can't be read."""
    try:
        return parse(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError(f"no UTF-8: {error}") from None


def parse(text: str) -> Scenario:
    """The scenario in ``text``. Raises FormatError, naming everything that is wrong."""
    found = load(text)
    if not isinstance(found, dict):
        raise FormatError("a scenario is a mapping with name, tables, nodes, steps and expect")
    try:
        scenario = Scenario.model_validate(found)
    except ValidationError as error:
        raise FormatError("; ".join(dict.fromkeys(_wrong(e) for e in error.errors()))) from None
    faults = list(_faults(scenario))
    if faults:
        raise FormatError("; ".join(faults))
    return scenario


def _wrong(error: ErrorDetails) -> str:
    # Of a choice between forms pydantic puts the form's name into the place; the reader knows only the file's keys.
    place = ".".join(str(p + 1 if isinstance(p, int) else p) for p in error["loc"] if _is_of_the_file(p))
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown"
    message = error["msg"].removeprefix("Value error, ")
    return f"{place or 'the file'}: {message[:1].lower()}{message[1:]}"


def _is_of_the_file(part: int | str) -> bool:
    return isinstance(part, int) or not part.startswith(("constrained-", "function-", "list[", "dict[", "literal["))


def _faults(scenario: Scenario) -> Iterator[str]:
    names = [table.name for table in scenario.tables]
    yield from (f"the table {name!r} stands there twice" for name in sorted({n for n in names if names.count(n) > 1}))
    nodes = list(scenario.nodes)
    yield from (f"the node {name!r} stands there twice" for name in sorted({n for n in nodes if nodes.count(n) > 1}))
    known = set(nodes)
    # A cut may name a node that is made later: it is for that node's first pull. So may claims, for its first token.
    later = {made for step in scenario.steps for made in _makes(step)}
    labels: dict[str, set[str]] = {}
    for number, step in enumerate(scenario.steps, 1):
        may_come = later if step.name in ("pull_cut", "offline", "drop_ack", "clock", "claims") else set()
        for name in _nodes_of(step):
            if name not in known | may_come:
                yield f"steps.{number}.{step.name}: there is no node {name!r}"
        for made in _makes(step):
            if made in known:
                yield f"steps.{number}.{step.name}: there is a node {made!r} already"
            if made in (ALL, SERVER):
                yield f"steps.{number}.{step.name}: no node is called {made!r}"
            known.add(made)
        if step.save is not None:
            labels.setdefault(step.save.what, set()).add(step.save.as_)
        if step.rewind is not None and step.rewind.to not in labels.get(step.rewind.what, set()):
            yield f"steps.{number}.rewind: nothing of {step.rewind.what!r} was saved as {step.rewind.to!r}"
        if step.crash is not None and not step.crash.startswith(NODE_PREFIX) and step.crash not in SERVICES:
            yield f"steps.{number}.crash: there is no process {step.crash!r}"
    yield from (f"no node is called {name!r}" for name in nodes if name in (ALL, SERVER))
    for node, spec in scenario.who.items():
        for name in sorted(set(spec.tables or ()) - set(names)):
            yield f"nodes.{node}.tables: there is no table {name!r}"
    if not (scenario.expect.model_fields_set - {"as_is"} or any(s.name in ("check", "fails") for s in scenario.steps)):
        yield "nothing is expected, so that nothing can fall short"
    for name in _expected_nodes(scenario.expect):
        if name not in known:
            yield f"expect: there is no node {name!r}"


def _makes(step: Step) -> list[str]:
    """The nodes that a step makes."""
    if step.fresh is not None:
        return [step.fresh]
    return [step.copy_.as_] if step.copy_ is not None else []


def _nodes_of(step: Step) -> list[str]:
    """The nodes that a step names, without those that it makes."""
    given = step.given
    if step.name in _NODE_STEPS:
        return [given]
    if step.name in _SYNC_STEPS:
        return [name for name in ([given] if isinstance(given, str) else given) if name != ALL]
    if step.name == "fails":
        return _nodes_of(given.step)
    if step.name == "check":
        return _expected_nodes(given)
    if step.name in ("save", "rewind"):
        return [] if given.what == SERVER else [given.what]
    if step.name in ("crash", "crash_at"):
        process = given if isinstance(given, str) else given.process
        return [process.removeprefix(NODE_PREFIX)] if process.startswith(NODE_PREFIX) else []
    node = getattr(given, "node", None)
    return [] if node is None or (step.name == "clock" and node == SERVER) else [node]


def _expected_nodes(expect: Any) -> list[str]:
    fields = (expect.nodes, expect.dead, expect.queue, expect.verdicts, expect.outcomes, expect.pulls, expect.pulled)
    return [name for field in fields for name in field or ()]
