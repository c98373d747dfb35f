"""``table audience`` and ``database audiences``: who sees which rows, and where principals have their audiences
from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.printable import say, say_json
from anabranch.clock import clock_from_environment
from anabranch.store.audiences.principals import current, evaluate
from anabranch.store.audiences.set_expression import set_audience
from anabranch.store.audiences.set_rules import given_rules, set_audience_rules
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.session.engine import Session
from anabranch.store.session.steps import run


def table(
    database: Annotated[str, typer.Argument(help="The database's name.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.", show_default=False)],
    expression: Annotated[
        str | None,
        typer.Option("--set", help="SQL over the row's columns, as in \"'team:' || team_id\".", show_default=False),
    ] = None,
    is_open: Annotated[bool, typer.Option("--open", help="Let every device see every row.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show the expression that says who sees which rows of a table. With --set or --open it is changed: the table is
    registered anew and read once, while its writers wait, and devices read it again; their queues stay."""
    if expression is not None and is_open:
        raise typer.BadParameter("give --set or --open, not both")
    with catalog_session(postgres_url, data_dir, "table") as conn:
        if expression is not None or is_open:
            added = set_audience(conn, database, name, expression, now_ms=clock_from_environment().now_ms())
            say(f'table "{name}" is registered anew: {added.rows} rows')
        found = load_database(conn, database)
    synced = found.find(name)
    if synced is None:
        raise refuse("NOT_SYNCED", f'"{name}" is no synced table of "{database}"')
    audience = found.restricted.get(synced.name)
    say(f"audience {audience.expression}" if audience is not None else "every device sees every row")


def database(
    name: Annotated[str, typer.Argument(help="The database's name.", show_default=False)],
    changes: Annotated[
        str | None,
        typer.Option(
            "--set",
            help='All rules as a JSON object, as in \'{"claims": {"teams": "team"}}\', or @FILE that holds it.',
            show_default=False,
        ),
    ] = None,
    of: Annotated[
        str | None, typer.Option("--of", help="Show this principal's audiences instead.", show_default=False)
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option("--claims", help="With --of: a token's claims, as a JSON object.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show where principals have their audiences from, as JSON, after setting it where --set is given: what is left
    out there is gone. For each membership query it is said which of its tables are traced: a changed row of these
    concerns few principals, and one of the others all. --of shows what a principal may read and write now."""
    if changes is not None and of is not None:
        raise typer.BadParameter("give --set or --of, not both")
    given = _read_object(changes, "rules") if changes is not None else None
    of_token = _read_object(claims, "claims") if claims is not None else {}
    with catalog_session(postgres_url, data_dir, "audiences") as conn:
        found = load_database(conn, name) if given is None else set_audience_rules(conn, name, given)
        if of is not None:
            say_json(_of_principal(conn, found, of, of_token), indent=2)
            return
    say_json(given_rules(found.audience_rules), indent=2, sort_keys=True)
    for line in _tracing(found):
        say(line, err=True)


def _read_object(text: str, what: str) -> dict[str, Any]:
    reason = "AUDIENCE_RULES" if what == "rules" else "INVALID_CLAIMS"
    try:
        found = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise refuse(reason, f"{text[1:]} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise refuse(reason, f"the {what} are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise refuse(reason, f"the {what} are no JSON object")
    return found


def _tracing(found: Database) -> Iterator[str]:
    called = {name: table.sql_name for name, table in found.tables.items()}
    for one in found.audience_rules.memberships:
        yield f"membership query {one.query}"
        traced = [called.get(name, name) for name in one.tables if name in one.traced]
        others = [called.get(name, name) for name in one.tables if name not in one.traced]
        if traced:
            yield f"  traced, a changed row concerns the principals that it names: {', '.join(traced)}"
        if others:
            yield f"  not traced, any change has every principal evaluated anew: {', '.join(others)}"
        if not one.tables:
            yield "  it reads no table: what it gives never changes"


def _of_principal(conn: Session, database: Database, principal: str, claims: dict[str, Any]) -> dict[str, Any]:
    rules = database.audience_rules
    now = run(conn, evaluate(database, [principal]))[principal]
    kept = run(conn, current(database.id, [principal])).get(principal, now)
    write = rules.read if rules.write is None else rules.write
    shown: dict[str, Any] = {
        "read": sorted(rules.read.claimed(claims) | now.read),
        "write": sorted(write.claimed(claims) | now.write),
    }
    if kept != now:
        # Changes by SQL that no group has yet, or a query over rows that are not captured.
        shown["memberships of the last group"] = {"read": sorted(kept.read), "write": sorted(kept.write)}
    return shown
