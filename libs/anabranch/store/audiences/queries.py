"""Membership queries as text: their parameter ``:principal``, and the names that they use."""

from __future__ import annotations

import re
from functools import lru_cache

from anabranch.store.cells.binary_cells import quote

PRINCIPALS = '"_DB_principals"'
"""The alias of the principals for which a query is run; no query has one of this name by chance."""
PRINCIPAL = f"{PRINCIPALS}.principal"
OUR_PATH = "pg_catalog, pg_temp"
"""The search path under which SQL of the application is printed and then run: every other name stands there in full,
so that a function that somebody makes later is never taken for another one."""

_PIECE = re.compile(
    r"""
      (?P<escaped>  [eE]'(?:[^'\\]|''|\\.)*' )
    | (?P<word>     [A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]* )
    | (?P<text>     '(?:[^']|'')*' )
    | (?P<name>     "(?:[^"]|"")*" )
    | (?P<dollar>   \$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?)\$.*?\$(?P=tag)\$ )
    | (?P<line>     --[^\n]* )
    | (?P<comment>  /\* )
    | (?P<cast>     :: )
    | (?P<principal> :principal(?![\w$\x80-\U0010ffff]) )
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT = re.compile(r"/\*|\*/")


def search_path(schema_name: str) -> str:
    """The search path by which a database's expressions and queries, as they were given, find what they name."""
    return f"pg_catalog, {quote(schema_name)}, public, pg_temp"


def for_principals(query: str, principal: str = PRINCIPAL) -> str:
    """The query with the SQL ``principal`` in place of its parameter, wherever that stands outside of texts, names and
    comments."""
    return principal.join(_parts(query))


def names_principal(query: str) -> bool:
    """Whether the query has the parameter."""
    return len(_parts(query)) > 1


@lru_cache(maxsize=1024)
def _parts(query: str) -> tuple[str, ...]:
    parts, begun, at = [], 0, 0
    while found := _PIECE.search(query, at):
        at = found.end()
        if found.lastgroup == "comment":
            at = _end_of_comment(query, at)
        elif found.lastgroup == "principal":
            parts.append(query[begun : found.start()])
            begun = at
    return (*parts, query[begun:])


def _end_of_comment(query: str, at: int) -> int:
    depth = 1
    while depth and (found := _COMMENT.search(query, at)):
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return at if depth == 0 else len(query)
