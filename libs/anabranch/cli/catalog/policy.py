"""``database policy`` and ``table policy``: show the rules of what is synced, and change them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from anabranch.cli.catalog.session import catalog_session, read_policy, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.printable import say, say_json
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.set_policy import set_database_policy, set_table_policy
from anabranch.store.ddl.install import installed
from anabranch.store.session.engine import Session

FUNCTION_GROUP = "anabranch.merge_functions"
Changes = Annotated[
    str | None,
    typer.Option(
        "--set",
        help='A JSON object of what is to change, as in \'{"delete": "wins"}\'; null takes a key away.',
        show_default=False,
    ),
]


def database(
    name: Annotated[str, typer.Argument(help="The database's name.", show_default=False)],
    changes: Changes = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show a database's policy as JSON, after changing it where --set is given."""
    given = read_policy(changes)
    with catalog_session(postgres_url, data_dir, "policy") as conn:
        found = set_database_policy(conn, name, given) if given else load_database(conn, name)
        warn_of_new_tables(conn, found)
    _print(found.policy.model_dump(mode="json"))


def table(
    database: Annotated[str, typer.Argument(help="The database's name.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.", show_default=False)],
    changes: Changes = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show what a table lays over its database's policy as JSON, after changing it where --set is given."""
    given = read_policy(changes)
    functions = {point.name for point in entry_points(group=FUNCTION_GROUP)}
    with catalog_session(postgres_url, data_dir, "policy") as conn:
        found = set_table_policy(conn, database, name, given, functions) if given else load_database(conn, database)
    synced = found.find(name)
    if synced is None:
        raise refuse("NOT_SYNCED", f'"{name}" is no synced table of "{database}"')
    _print(found.table_policies[synced.name].in_sql(synced).given())


def warn_of_new_tables(conn: Session, database: Database) -> None:
    """Say where a database is to have new tables synced by themselves, and nothing tells of them. Raises
    psycopg.Error."""
    if database.policy.new_tables != "none" and not installed(conn):
        text = (
            "warning: new_tables takes effect by event triggers, which are not there: `anabranch database migrate` as "
            "a superuser makes them; else add each new table with `anabranch table add`"
        )
        say(text, err=True)


def _print(policy: Mapping[str, Any]) -> None:
    say_json(policy, indent=2, sort_keys=True)
