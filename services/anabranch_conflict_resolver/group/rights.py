"""The audiences that the principals of a group's batches may read, and those that they may write. Claims count as they
were when the batch was sent, memberships as they are when it is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.store.audiences import principals
from anabranch.store.audiences.evaluated import QUERY_FAILS
from anabranch.store.audiences.principals import Given
from anabranch.store.inbox.take import Taken
from anabranch.store.session import steps
from anabranch_conflict_resolver.batch.results import Candidate
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.group.audiences import log_failure
from anabranch_conflict_resolver.group.context import Context

_NOTHING = Given()
_Claimed = tuple[str, tuple[str, ...] | None, tuple[str, ...] | None]


def learn_principals(context: Context, candidates: Sequence[Candidate]) -> None:
    """Know what membership queries give the principals of batches that touch a restricted table. Called before any
    savepoint of the group is open: who was never known is kept, and ``given`` must not say so of one who is not. Where
    a query fails, nobody new has any audience.

    Raises:
        psycopg.Error: Postgres refused something else.
    """
    database = context.synced.database
    names = sorted({taken.principal for taken in _concerned(context, candidates)} - context.given.keys())
    if names and database.audience_rules.memberships and not context.dry:
        try:
            context.given.update(steps.run(context.conn, principals.learn(database, names, context.now_ms)))
        except QUERY_FAILS as error:
            log_failure(database, error)
            context.given.update(steps.run(context.conn, principals.current(database.id, names)))


def rights_of(context: Context, candidates: Sequence[Candidate], *, memberships_changed: bool) -> Mapping[str, Rights]:
    """The rights of those batches that touch a restricted table, by id. ``memberships_changed``: changes that are
    drained with this group may have changed what queries give.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    concerned = _concerned(context, candidates)
    given: Mapping[str, Given] = context.given
    if concerned and (memberships_changed or context.dry):
        names = sorted({taken.principal for taken in concerned})
        try:
            given = steps.run(context.conn, principals.evaluate(context.synced.database, names))
        except QUERY_FAILS as error:
            log_failure(context.synced.database, error)
    made: dict[_Claimed, Rights] = {}
    rights: dict[str, Rights] = {}
    for taken in concerned:
        # Most batches of a group are of few principals, with the same claims.
        claimed = (taken.principal, _as_key(taken.read_audiences), _as_key(taken.write_audiences))
        of_batch = made.get(claimed)
        if of_batch is None:
            of_batch = made[claimed] = _rights(taken, given.get(taken.principal, _NOTHING))
        rights[taken.batch_id] = of_batch
    return rights


def _as_key(audiences: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if audiences is None else tuple(audiences)


def _concerned(context: Context, candidates: Sequence[Candidate]) -> list[Taken]:
    restricted = context.synced.database.restricted
    if not restricted:
        return []
    return [c.taken for c in candidates if any(one.table in restricted for one in c.decoded.mutations)]


def _rights(taken: Taken, given: Given) -> Rights:
    read = taken.read_audiences or ()
    write = taken.write_audiences if taken.write_audiences is not None else read
    return Rights(given.read.union(read), given.write.union(write))
