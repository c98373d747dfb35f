"""The structure of a Postgres database as a script: everything but rows, rights and our own schema.

It is ``pg_dump``'s: nothing else knows all that a schema may have. For the second or so that it takes it holds what a
SELECT holds of the tables, and it waits for no lock for longer than that.
"""

from __future__ import annotations

import os
import subprocess

import psycopg
from psycopg.conninfo import conninfo_to_dict

from anabranch.errors import ServerError

_OPTIONS = (
    "--schema-only",
    "--no-owner",
    "--no-privileges",
    "--no-comments",
    "--no-publications",
    "--no-subscriptions",
    "--no-security-labels",
    "--no-tablespaces",
    "--exclude-schema=anabranch",
    "--lock-wait-timeout=2s",
    "--no-password",
)
_PATIENCE_S = 300.0


class StructureError(ServerError, RuntimeError):
    """The structure can't be read; the message has the program's own words."""


def dump_structure(program: str, url: str) -> str:
    """The script that makes a database of the structure of that at ``url``. ``program``: the path of pg_dump.

    Raises:
        StructureError: it can't be read.
    """
    # Not as arguments, which everybody on this machine may read.
    names = {
        bytes(one.keyword).decode(): bytes(one.envvar).decode()
        for one in psycopg.pq.Conninfo.get_defaults()
        if one.envvar
    }
    given = {names[key]: str(value) for key, value in conninfo_to_dict(url).items() if key in names}
    environment = {**os.environ, **given, "PGAPPNAME": "anabranch-plan", "PGOPTIONS": given.get("PGOPTIONS", "")}
    try:
        done = subprocess.run(
            [program, *_OPTIONS], env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StructureError(f"the structure of the database can't be read: {error}") from error
    if done.returncode:
        words = " ".join(done.stderr.split())
        raise StructureError(f"the structure of the database can't be read: {words}")
    return done.stdout
