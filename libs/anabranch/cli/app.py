"""The ``anabranch`` command. Each subcommand's module is imported when it is called, so that ``--help`` is
quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from anabranch.cli.printable import say

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("anabranch.cli.up", "Run everything on this machine: Postgres, its schema, the services."),
    "status": ("anabranch.cli.status", "Show databases, heads, backlog, nodes and lag."),
    "database": ("anabranch.cli.catalog.database", "Create and list databases: units of sync."),
    "table": ("anabranch.cli.catalog.table", "Register tables for sync, and list them."),
    "verify": ("anabranch.cli.verify.verify", "Compare tables with the log, or a device's file with the server."),
    "demo": ("anabranch.demo.command", "Real data, four tablets offline, one Postgres: the main job."),
    "bench": ("anabranch.bench.command", "Measure, each figure beside its baseline."),
    "figures": ("anabranch.bench.figures_command", "Make the table of figures of the JSON of several runs of benches."),
    "scenario": ("anabranch.scenario.command", "Tell stories about a server and its nodes, and check how they end."),
    "conflicts": ("anabranch.cli.conflicts", "Show values that lost a conflict."),
    "dead": ("anabranch.cli.dead", "Show, replay and discard dead letters in a device's file."),
    "compact": ("anabranch.cli.compact", "Make Parquet of the log with Spark: history, lake and snapshot in one."),
    "smoke": ("anabranch.cli.smoke", "See that an installation works: a row from one device to another."),
    "retention": ("anabranch.cli.retention", "Show what holds a database's floor back, and what goes; sweep now."),
    "lake": ("anabranch.cli.lake.lake", "Show what happened to a row, and a table as it was."),
    "schema": ("anabranch.cli.schema.schema", "Show how a schema has changed, and what a migration will mean."),
    "node": ("anabranch.cli.catalog.node", "List the nodes of a database, and forget one that won't come back."),
    "key": ("anabranch.cli.catalog.key", "Create, list and revoke API keys."),
}
"""Name of a subcommand to the module whose ``app`` it is, and what it does in a line."""
TESTKIT = ("anabranch.bench", "anabranch.demo", "anabranch.scenario")
"""Packages that a server is installed without: the table above names their modules, and nothing imports them."""


class Forwarding(TyperCommand):
    """The command that leaves all its arguments to ``main`` and ends with the code that it gives."""

    def __init__(self, main: Callable[[list[str]], int]) -> None:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
        super().__init__("forwarding", context_settings=settings)
        self._main = main

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        raise typer.Exit(self._main(ctx.args))


class LazyGroup(TyperGroup):
    """A group that knows its subcommands by the table alone until one of them is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that has the name and the help line; None for no such command."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        module = _module(name)
        # A command that works on a device's file alone does not use typer: a device has none.
        real: Any = typer.main.get_command(module.app) if hasattr(module, "app") else Forwarding(module.main)
        real.name = name
        return name, real, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; where the database is not available, print one line that says so."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            explanation = _explain(error)
            if explanation is None:
                raise
            say(f"anabranch: {explanation}", err=True)
            raise typer.Exit(1) from error


def _module(name: str) -> Any:
    """Import the module of a subcommand; where its package is not installed, print one line that says so."""
    try:
        return importlib.import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        if error.name not in TESTKIT:
            raise
        say(f"anabranch: `anabranch {name}` needs the package anabranch-testkit, of the same version", err=True)
        raise typer.Exit(1) from error


def _explain(error: Exception) -> str | None:
    """Describe what is wrong with the database; None where ``error`` is about something else."""
    if "psycopg" not in sys.modules:
        return None
    from anabranch.store.session.availability import is_schema_missing, is_unavailable

    if is_schema_missing(error):
        return "this Postgres has no schema anabranch: `anabranch up` or `anabranch database create` makes it"
    return f"Postgres is not available: {' '.join(str(error).split())}" if is_unavailable(error) else None


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def anabranch() -> None:
    """Offline-first sync for Postgres: every write ends in a verdict."""
