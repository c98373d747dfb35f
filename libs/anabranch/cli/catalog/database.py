"""``anabranch database``: units of sync."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.catalog import audience as audiences
from anabranch.cli.catalog import policy as policies
from anabranch.cli.catalog.session import PolicyOption, catalog_session, clear_errors, read_policy, refuse
from anabranch.cli.installation import DataDir, PostgresUrl, find_postgres
from anabranch.cli.lines import columns, listing, paragraph, show
from anabranch.cli.printable import printable, say
from anabranch.store import migrate as migrations
from anabranch.store.catalog.databases import Database, load_database, load_databases
from anabranch.store.catalog.drift import Drift, drift
from anabranch.store.catalog.registration import create_database
from anabranch.store.session.engine import Session
from anabranch.store.session.errors import PostgresError
from anabranch.store.session.told import told
from anabranch.store.writers import writer
from anabranch.store.writers.own_writer import make_own

app = typer.Typer(no_args_is_help=True, help="Create and list databases: units of sync.")
Name = Annotated[str, typer.Argument(help="The database's name.", show_default=False)]

app.command("policy")(policies.database)
app.command("audiences")(audiences.database)


@app.command()
def create(
    name: Name,
    schema: Annotated[str, typer.Option(help="The Postgres schema that holds its tables.")] = "public",
    policy: PolicyOption = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Make a Postgres schema a database. Its tables are added one by one, with ``anabranch table add``. As a superuser,
    it makes the role as which the resolver writes to them, too."""
    given = read_policy(policy)
    with catalog_session(postgres_url, data_dir, "database") as conn:
        made = create_database(conn, name, schema, given)
        _make_writer(conn, made)
        policies.warn_of_new_tables(conn, made)
    say(f'database "{made.name}" is schema "{made.schema_name}"; no table is synced yet')


def _make_writer(conn: Session, made: Database) -> None:
    """The resolver makes it as well, before its first group of the database."""
    try:
        make_own(conn, made.id)
    except PostgresError as error:
        say(f"warning: the resolver has to make the role as which it writes to the tables: {told(error)}", err=True)


@app.command("list")
def list_(data_dir: DataDir = None, postgres_url: PostgresUrl = None) -> None:
    """Show all databases."""
    with catalog_session(postgres_url, data_dir, "database") as conn:
        found = load_databases(conn)
    rows = [
        (
            name,
            database.schema_name,
            str(len(database.tables)),
            str(database.ddl_version),
            database.epoch,
            database.policy.order,
        )
        for name, database in sorted(found.items())
    ]
    console = Console()
    show(console, listing(("database", "schema", "tables", "schema version", "epoch", "order"), rows, console.width))


@app.command("show")
def show_(name: Name, data_dir: DataDir = None, postgres_url: PostgresUrl = None) -> None:
    """Show a database: its policy, its tables in the order of their foreign keys, and what has changed in
    them since they were added."""
    with catalog_session(postgres_url, data_dir, "database") as conn:
        database = load_database(conn, name)
        differences = drift(conn, database)
    _show(Console(), database, differences)


@app.command("writer")
def make_writer(
    role: Annotated[
        str | None,
        typer.Argument(
            help="An existing role that may log in. Left out: all writers that are there.", show_default=False
        ),
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            help="Give the rights to this schema, too: triggers of synced tables write to its tables. May be repeated.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Give a role the rights that committing groups takes, and no others: the resolver writes to the tables of all
    databases as this role, whose password you set, where ANABRANCH_WRITER_POSTGRES_URL names it. Where the services'
    role is a superuser, as under `anabranch up`, each database has one of its own, which `database create` makes, or
    the resolver; such a role gets the rights that its database takes."""
    with catalog_session(postgres_url, data_dir, "database") as conn:
        roles = writer.writers(conn) if role is None else [role]
        if not roles:
            raise refuse("NO_WRITER", "there is no writer yet: name a role")
        excess = {name: writer.make(conn, name, grant or ()) for name in roles}
        own = {name: writer.only_database(conn, name) for name in roles}
    for name, much in excess.items():
        for what in much:
            say(f'warning: role "{name}" {what}, and so may what the owners of synced tables have run', err=True)
        owned = own[name]
        whose = "all databases, and write to the tables of their schemas"
        if owned is not None:
            whose = f'database "{owned}", and write to the tables of its schema'
        say(f'role "{name}" may commit groups of {whose}{_further(grant)}')


def _further(schemas: list[str] | None) -> str:
    return "".join(f' and of schema "{name}"' for name in schemas or ())


@app.command()
def migrate(
    wait_s: Annotated[
        float,
        typer.Option("--wait-s", min=0, help="How long to wait for a Postgres that is not there yet, in seconds."),
    ] = 0,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Bring schema anabranch to this release's revision. Does nothing when it is there, or is a newer one that this
    release works with."""
    with clear_errors():
        url = find_postgres(postgres_url, data_dir)
        migrations.await_server(url, wait_s)
        changed = migrations.upgrade(url)
        revision = migrations.current(url)
    say(f"schema anabranch {'is now' if changed else 'was already'} at revision {revision}")


def _show(console: Console, database: Database, differences: list[Drift]) -> None:
    policy = database.policy.model_dump() | {"max_absence_days": database.policy.absence_days}
    facts = {"schema": database.schema_name, "epoch": database.epoch, "schema version": database.schema_version}
    told = {**facts, "floor": database.floor_ms, **policy}
    show(console, columns([(fact, printable(str(value))) for fact, value in told.items()], console.width))
    tables = []
    for name in database.table_order:
        table = database.tables[name]
        rules = database.table_policies[name].in_sql(table).given()
        of_columns = rules.pop("columns", {})
        policies = ", ".join(f"{k}: {v}" for k, v in {**rules, **of_columns}.items())
        tables.append((table.sql_name, ", ".join(table.in_sql(table.key_columns)), str(len(table.columns)), policies))
    show(console, listing(("table", "key", "columns", "policies"), tables, console.width))
    cycles = [", ".join(database.tables[name].sql_name for name in cycle) for cycle in database.order.cycles]
    said = [f"foreign keys point in a circle: {cycle}" for cycle in cycles]
    said += [f'changed since it was added: "{one.called}": {one.text}' for one in differences]
    show(console, (line for text in said for line in paragraph(printable(text), console.width)))
