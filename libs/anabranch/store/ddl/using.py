"""The columns that a command's text may give other values by USING.

Nothing but the text tells of USING. It is believed where it shows all that ran: each of its statements is an ALTER
TABLE, one of them of the table in question, or can alter nothing: it reads or writes rows and calls no function but
well-known ones of Postgres, or makes or drops something. Whatever else may run an ALTER TABLE that is not to be seen;
and where quotes or comments could be read in two ways nothing is sure, either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

_CUT = 4_000
"""The longest text of a command in a marker: one of that length is not whole."""
_LONGEST_NAME = 63
# Left out is what may be read in two ways: comments in comments, strings in dollars, and strings with
# backslashes, which a session may have made escapes.
_TOKEN = re.compile(
    r"""
    [ \t\n\r\f\v]+ | --[^\n\r]* | /\*(?:(?!/\*|\*/).)*\*/
    | [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^'\\]|'')*' | (?P<quoted>"(?:[^"]|"")+")
    | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z_0-9$\x80-\U0010ffff]*) | (?P<other>[^'"$])
    """,
    re.VERBOSE | re.DOTALL,
)
_HARMLESS = frozenset(
    re.findall(
        r"\w+",
        """
        alter analyze begin comment commit copy create delete drop end grant insert merge release revoke rollback
        savepoint select set start truncate update values with
        """,
    )
)
"""The first words of statements that alter no column of a table by themselves; ALTER TABLE is another one."""
_CALLED = frozenset(
    re.findall(
        r"\w+",
        """
        all and any array as between bit by cast char character check conflict decimal default distinct else exists
        filter float from generated in index interval join key not nullif numeric on or over primary references
        returning row select set some then time timestamp timestamptz unique using values varchar varying when where

        abs array_agg ascii avg btrim ceil chr clock_timestamp coalesce concat concat_ws count currval date_trunc decode
        encode extract floor format gen_random_uuid generate_series greatest json_build_array json_build_object
        jsonb_build_array jsonb_build_object least left length lower lpad ltrim make_date make_interval max md5 min mod
        nextval now overlay position random repeat replace right round row_number rpad rtrim split_part string_agg
        strpos substr substring sum to_char to_date to_json to_jsonb to_number to_timestamp trim unnest upper
        """,
    )
)
"""Words before a parenthesis that call nothing, and functions which come with Postgres and alter nothing."""
_MAKES = frozenset({"alter", "comment", "create", "drop", "grant", "revoke"})
"""The first words of statements that call no function, unless they fill what they make by a query."""
_Words = Sequence[tuple[str, bool]]
"""Words of SQL, and whether each was quoted."""


def may_change(command: str, table_name: str, columns: Collection[str]) -> frozenset[str]:
    """Those of a table's ``columns`` to which ``command`` may have given other values by USING: those that it retypes,
    none where it has no USING, and all where its text does not show for sure which these are."""
    every = frozenset(columns)
    words = _words(command) if 0 < len(command) < _CUT else None
    if words is None:
        return every
    named = False
    retyped: set[str] = set()
    for statement in _statements(words):
        if statement[:2] == [("alter", False), ("table", False)]:
            named |= _same(_table_of(statement), table_name)
            names = list(_retyped(statement))
            if ("using", False) in statement and not names:
                return every
            retyped.update(names if ("using", False) in statement else ())
        elif not _alters_nothing(statement):
            return every
    return frozenset(column for column in every if any(_same(column, name) for name in retyped)) if named else every


def _words(text: str) -> list[tuple[str, bool]] | None:
    """The words of SQL as Postgres takes them, without comments and literals; None where that is not sure."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token["other"] == "/" and text.startswith("/*", at)):
            return None
        at = token.end()
        if token["quoted"]:
            found.append((token["quoted"][1:-1].replace('""', '"'), True))
        elif token["word"] or token["other"]:
            found.append(((token["word"] or token["other"]).lower(), False))
    cut = any(len(word.encode("utf-8", "surrogatepass")) > _LONGEST_NAME for word, _ in found)
    escaped = any(one == ("u", False) and then == ("&", False) for one, then in pairwise(found))
    return None if cut or escaped else found


def _statements(words: _Words) -> Iterator[list[tuple[str, bool]]]:
    statement: list[tuple[str, bool]] = []
    for word in [*words, (";", False)]:
        if word != (";", False):
            statement.append(word)
        elif statement:
            yield statement
            statement = []


def _alters_nothing(statement: _Words) -> bool:
    """Whether it is sure that a statement other than ALTER TABLE alters no table."""
    first, quoted = statement[0]
    if quoted or first not in _HARMLESS or (first == "copy" and ("program", False) in statement):
        return False
    if first in _MAKES and not any((word, False) in statement for word in ("select", "execute")):
        return True
    if ("execute", False) in statement:
        # A prepared statement, unless a trigger is made.
        return ("trigger", False) in statement
    return all(_is_known(statement, at) for at, word in enumerate(statement) if word == ("(", False))


def _is_known(statement: _Words, at: int) -> bool:
    """Whether the parenthesis at a place follows nothing that is a function, or a well-known one."""
    word, quoted = statement[at - 1] if at else ("", False)
    qualified = at >= 2 and statement[at - 2] == (".", False)
    if not quoted and not qualified and (word in _CALLED or not (word[:1].isalpha() or word[:1] == "_")):
        return True
    # The columns of an INSERT: behind the table's name, which may have its schema before it.
    start = at - 1
    while statement[start - 1 : start] == [(".", False)]:
        start -= 2
    return start >= 1 and statement[start - 1] == ("into", False)


def _table_of(statement: _Words) -> str:
    """The name behind ALTER TABLE, without its schema."""
    at = 2
    for optional in ("if", "exists", "only"):
        at += statement[at : at + 1] == [(optional, False)]
    while statement[at + 1 : at + 2] == [(".", False)]:
        at += 2
    return statement[at][0] if at < len(statement) else ""


def _retyped(statement: _Words) -> Iterator[str]:
    """The names between ALTER COLUMN and TYPE."""
    for place, word in enumerate(statement):
        if word != ("alter", False):
            continue
        at = place + 1 + (statement[place + 1 : place + 2] == [("column", False)])
        then = [w for w, quoted in statement[at + 1 : at + 4] if not quoted]
        if then[:1] == ["type"] or then == ["set", "data", "type"]:
            yield statement[at][0]


def _same(one: str, other: str) -> bool:
    # Which letters Postgres takes for one depends on the server's encoding.
    return one.lower() == other.lower()
