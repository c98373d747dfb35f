"""The lines of ``anabranch schema plan``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from anabranch.cli.lines import fitted, paragraph
from anabranch.cli.printable import printable
from anabranch.cli.schema.plan import HARD, MigratedTable, MigrationPlan
from anabranch.cli.status_lines import BOLD, RED, YELLOW
from anabranch.store.plan.costs import CostKind

_GREEN = "green"
_SHOWN = 10
"""Batches that are shown; --json has all."""


def plan_lines(plan: MigrationPlan, width: int) -> Iterator[Text]:
    """The plan: each table with its costs, then batches, apps and notes."""
    if plan.tables:
        yield from fitted([f"database {printable(plan.database)}", f"schema version {plan.version + 1} comes"], width)
    else:
        yield from paragraph("nothing that devices know changes: the schema version stays", width)
    for table in plan.tables:
        yield from _table(table, width)
    yield from _batches(plan, width)
    for version, nodes in sorted(plan.apps.items()):
        text = f"apps built for schema version {version}, on {nodes} nodes, may need an update before they sync again"
        yield from paragraph(text, width, style=YELLOW)
    if plan.writes:
        text = f"{plan.writes} statements may write rows: such changes follow in the log row by row, however many"
        yield from paragraph(text, width)
    for line in plan.left_out:
        yield from paragraph(printable(f"left out: {line}"), width)
    for line in plan.missing:
        yield from paragraph(printable(f"not in the copy: {line}"), width)


def _table(table: MigratedTable, width: int) -> Iterator[Text]:
    name = printable(table.before or table.after)
    rows = [] if table.rows is None else [f"{table.rows:,} rows"]
    yield from fitted([f'table "{name}"', *rows], width, style=BOLD)
    for cost in table.costs:
        style = RED if cost.kind is CostKind.STOPS else YELLOW if cost.kind in HARD else _GREEN
        yield from paragraph(printable(f"{cost.kind.upper()}: {cost.text}"), width, 2, style=style)
    for text in table.texts:
        yield from paragraph(printable(text), width, 4)
    for text in table.warnings:
        yield from paragraph(printable(text), width, 4, style=YELLOW)


def _batches(plan: MigrationPlan, width: int) -> Iterator[Text]:
    more = f" (the last ones; {plan.unread:,} more were not read)" if plan.unread else ""
    looked = f"of {plan.batches:,} batches that wait{more}"
    refused = len({one.batch_id for one in plan.troubles if one.refused})
    losing = len({one.batch_id for one in plan.troubles if not one.refused})
    yield from paragraph(f"{looked}, {refused} would be refused, and {losing} would lose values", width)
    for one in plan.troubles[:_SHOWN]:
        text = f'{one.batch_id} of {one.node}, table "{one.table}": {one.why}'
        yield from paragraph(printable(text), width, 2, style=YELLOW if one.refused else "")


def plan_json(plan: MigrationPlan) -> dict[str, Any]:
    """The plan as a JSON object."""
    return asdict(plan)
