"""``anabranch verify --visibility``: whether policies hide from a principal what its audiences show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.cli.catalog.session import refuse
from anabranch.cli.printable import say
from anabranch.store.audiences.principals import evaluate
from anabranch.store.audiences.rules import claims_text
from anabranch.store.audiences.visibility import first_hidden
from anabranch.store.catalog.databases import Database
from anabranch.store.session.engine import Session
from anabranch.store.session.steps import run

ONE_MOMENT = "set transaction isolation level repeatable read, read only"


def check_visibility(conn: Session, database: Database, tables: Sequence[str], people: Sequence[str]) -> bool:
    """Whether policies hide a row of one of ``tables`` that audiences show to one of ``people``; each such table is
    named with its first one. People are names, or claims as JSON objects with ``sub``."""
    if not database.audience_rules.rls_role:
        text = f"database {database.name} has no role whose policies decide: set rls in its audience rules"
        raise refuse("NO_RLS_ROLE", text)
    differs = False
    for person in people:
        claims = _claims(person)
        name = claims["sub"]
        with conn.transaction():
            conn.execute(ONE_MOMENT)
            given = run(conn, evaluate(database, [name]))[name].read
            read = sorted(database.audience_rules.read.claimed(claims) | given)
            for table in tables:
                hidden = first_hidden(conn, database, table, read, claims_text(name, claims))
                called = database.tables[table].sql_name
                if hidden is None:
                    say(f"{called}: policies hide nothing from {name} that audiences show")
                    continue
                differs = True
                key = ", ".join(hidden)
                say(f"{called}: row {key} is SHOWN to {name} by its audiences, and a policy hides it")
    return differs


def _claims(person: str) -> Mapping[str, Any]:
    if not person.startswith("{"):
        return {"sub": person}
    try:
        claims = json.loads(person)
    except ValueError as error:
        raise refuse("INVALID_CLAIMS", f"the claims are no JSON: {error}") from error
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise refuse("INVALID_CLAIMS", "the claims have no sub, the principal's name")
    return dict(claims)
