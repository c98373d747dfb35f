"""Groups of a restricted table, written as the resolver does, with all that it keeps of audiences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jwt
from ulid import ULID

from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog.registration import add_table
from anabranch.testkit.key_sets import claims
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import batch_pb2, change_pb2, position_pb2
from anabranch.values.canonical import SUM_MODULUS, RowEncoder
from anabranch.wire.effects import Effect, EffectBuilder

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Place

SECRET = "a secret that is long enough for HS256"
JOB = "create table {schema}.job (id text primary key, team text, title text)"
JOB_AUDIENCE = "'team:' || team"
BY_TITLE = "select 'team:' || team from job where title = :principal"
Row = tuple[str, str | None, str | None]


def team(name: str) -> str:
    return f"team:{name}"


def restrict(place: Place, *, claimed: Mapping[str, str] | None = None, queries: Sequence[str] = ()) -> None:
    """Give a place the restricted table ``job``, and rules."""
    place.conn.execute(JOB.format(schema=place.schema).encode())
    add_table(place.conn, place.name, "job", audience=JOB_AUDIENCE)
    set_rules(place, {"teams": "team"} if claimed is None else claimed, queries)


def set_rules(place: Place, claimed: Mapping[str, str], queries: Sequence[str] = (), rls: str | None = None) -> None:
    """Give a place other rules."""
    set_audience_rules(place.conn, place.name, {"claims": dict(claimed), "memberships": list(queries), "rls": rls})


def viewer(place: Place, subject: str, *teams: str, node: str = "") -> Reader:
    """A reader whose token says that it is in some teams."""
    token = jwt.encode(claims(sub=subject, anabranch_database="*", teams=list(teams)), SECRET, "HS256")
    reader = place.make_reader(subject=subject)
    reader.key = token
    if node:
        reader.node = batch_pb2.Node(id=node, name="reader")
    return reader


class AudienceWriter(LogWriter):
    """Writes groups of the table ``job``."""

    def __init__(self, url: str, db_name: str) -> None:
        super().__init__(url, db_name)
        self.rows: dict[str, Row] = {}
        self.encoder = RowEncoder(self.table("job"))
        self._builder = EffectBuilder(self.table("job"))
        self._scopes: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
        self._members: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {}

    @property
    def number(self) -> int:
        """The database's number."""
        return self.database.id

    def put(
        self,
        *changes: tuple[str, str | None, str | None] | str,
        node: str = "",
        one_batch: bool = False,
        members: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None,
        losers: Sequence[tuple[str, str, bytes]] = (),
        touch: Sequence[str] = (),
    ) -> int:
        """Commit rows (id, team, title) as they are to be, and ids of rows that are to go, in a batch each or in one.
        ``members``: by principal the audiences that it gained and lost by that. ``touch``: rows that it only names.
        Returns the position."""
        batches: list[Logged] = []
        writes: list[tuple[str, Row | None]] = []
        for change in [*changes, *(("", one) for one in touch)]:
            if not batches or not one_batch:
                batches.append(Logged("job", id=str(ULID()), node_id=node or str(ULID())))
            effect, key, before, after = self._effect(change)
            batch = batches[-1]
            self._scopes[batch.id, len(batch.effects)] = before, after
            batch.effects = [*batch.effects, (key, effect)]
            if effect.type != change_pb2.EFFECT_TYPE_NONE:
                writes.append((key, self.rows.get(key)))
        if losers:
            batches[0].losers = losers
        self._members = members or {}
        return self.commit(batches, lambda: self._store(writes))

    def _effect(self, change: Any) -> tuple[Effect, str, list[str], list[str]]:
        if isinstance(change, tuple) and change[0] == "":
            row = self.rows[change[1]]
            return self._builder.none([row[0]]), row[0], whose(row), whose(row)
        key = change if isinstance(change, str) else change[0]
        old = self.rows.get(key)
        if isinstance(change, str):
            assert old is not None
            del self.rows[key]
            return self._builder.delete(old), key, whose(old), []
        self.rows[key] = change
        if old is None:
            return self._builder.insert(change), key, [], whose(change)
        effect = self._builder.update(old, change)
        if whose(old) != whose(change):
            whole = change_pb2.Effect.FromString(self._builder.insert(change).data)
            whole.type = change_pb2.EFFECT_TYPE_UPDATE
            effect = effect._replace(data=whole.SerializeToString())
        return effect, key, whose(old), whose(change)

    def _store(self, writes: Sequence[tuple[str, Row | None]]) -> None:
        table = f'"{self.database.schema_name}".job'
        for key, row in writes:
            self.conn.execute(f"delete from {table} where id = %s".encode(), (key,))
            if row is not None:
                self.conn.execute(f"insert into {table} values (%s, %s, %s)".encode(), row)

    def _sums(self, position: int, batches: Sequence[Logged]) -> list[bytes]:
        messages = super()._sums(position, batches)
        for (batch_id, ordinal), (before, after) in self._scopes.items():
            for table in ("log", "conflicts"):
                self.conn.execute(
                    f"update anabranch.{table} set audience_before = %s, audience_after = %s where database_id = %s"
                    " and position = %s and batch_id = %s and ordinal = %s".encode(),
                    (before, after, self.number, position, batch_id, ordinal),
                )
        touched = {one for before, after in self._scopes.values() for one in (*before, *after)}
        for audience in sorted(touched):
            count, digest = self.sum_of(audience)
            self.conn.execute(
                "insert into anabranch.audience_sums values (%s, %s, %s, %s, %s) on conflict (table_id, audience)"
                " do update set position = excluded.position, row_count = excluded.row_count,"
                " row_hash = excluded.row_hash",
                (self.table("job").id, audience, position, count, digest),
            )
            message = position_pb2.TableSum(table="job", count=count, hash=digest, audience=audience)
            messages.append(message.SerializeToString())
        for principal, (gained, lost) in self._members.items():
            self.conn.execute(
                "insert into anabranch.audience_changes values (%s, %s, %s, %s, %s)",
                (self.number, position, principal, list(gained), list(lost)),
            )
            self.conn.execute(
                "update anabranch.principals set memberships = array(select distinct v from unnest(memberships ||"
                " %(gained)s::text[]) v where v <> all(%(lost)s::text[]) order by 1)"
                " where database_id = %(db)s and principal = %(principal)s",
                {"gained": list(gained), "lost": list(lost), "db": self.number, "principal": principal},
            )
        self._scopes.clear()
        return messages

    def sum_of(self, *audiences: str) -> tuple[int, bytes]:
        """Count and hash of the rows of some audiences."""
        rows = [row for row in self.rows.values() if set(whose(row)) & set(audiences)]
        total = sum(self.encoder.hash(row) for row in rows) % SUM_MODULUS
        return len(rows), total.to_bytes(16, "big")

    def seen_by(self, *audiences: str) -> dict[str, Row]:
        """The rows of some audiences."""
        return {key: row for key, row in self.rows.items() if set(whose(row)) & set(audiences)}


def whose(row: Row) -> list[str]:
    """A row's audiences."""
    return [] if row[1] is None else [team(row[1])]


def learned(place: Place, principal: str, *audiences: str) -> None:
    """Keep what queries give a principal, as if it had been evaluated."""
    place.conn.execute(
        "insert into anabranch.principals select id, %s, %s, null, 1 from anabranch.databases where name = %s",
        (principal, list(audiences), place.name),
    )
