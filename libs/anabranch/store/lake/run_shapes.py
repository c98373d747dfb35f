"""The columns that tables had when each stretch of the log was compacted.

The newest manifest names the files, also where files have been merged since; but it knows the tables as they are now.
An effect, and so its hash, is made of the columns that its table had then: those of the run that published the stretch.
File columns keep their names, so that the columns of that run are found in the newest files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from anabranch.columnar.evidence import EvidenceError
from anabranch.columnar.file_columns import FileTable
from anabranch.columnar.manifest import Manifest, ManifestError, from_json
from anabranch.store.session.engine import Session

# Without the files, which are most of a manifest.
SHAPES = """
select run_id, from_position, to_position,
       jsonb_set(manifest, '{tables}', coalesce(
           (select jsonb_object_agg(t.key, t.value || '{"changes": [], "conflicts": [], "base": null, "ended": [],
                                                        "earlier": []}')
            from jsonb_each(manifest -> 'tables') t), '{}'))
from anabranch.compactions
where database_id = %(db)s and epoch = %(epoch)s and to_position > %(after)s and from_position < %(upto)s
order by from_position
"""


@dataclass(frozen=True, slots=True)
class LogStretch:
    """A stretch (``after``, ``upto``] of the log, all of it of tables with these columns."""

    after: int
    upto: int
    columns: Mapping[str, FileTable]

    def seen_in(self, newest: Manifest) -> Manifest:
        """The newest manifest's files, with the tables as they were."""
        known = self.columns
        return newest.with_tables(
            {name: replace(files, columns=known.get(name, files.columns)) for name, files in newest.tables.items()}
        )


def read_pieces(conn: Session, database_id: int, epoch: str, after: int, upto: int) -> list[LogStretch]:
    """The pieces of (``after``, ``upto``], in order.

    Raises:
        EvidenceError: a run's manifest can't be read, or the runs leave something out.
        psycopg.Error: the runs can't be read.
    """
    rows = conn.execute(SHAPES, {"db": database_id, "epoch": epoch, "after": after, "upto": upto}).fetchall()
    pieces = list(_joined(_pieces(rows, after, upto)))
    if not pieces or pieces[-1].upto != upto:
        raise EvidenceError(f"no published runs have all of ({after}, {upto}]")
    return pieces


def _pieces(rows: Iterable[tuple[str, int, int, Mapping[str, object]]], after: int, upto: int) -> Iterator[LogStretch]:
    reached = after
    for run_id, first, last, content in rows:
        if first > reached:
            return
        try:
            manifest = from_json(content)
        except (ManifestError, KeyError, TypeError, ValueError) as error:
            raise EvidenceError(f"run {run_id}: its published manifest can't be read: {error!r}") from error
        columns = {name: files.columns for name, files in manifest.tables.items()}
        for end in sorted({min(last, upto), *(f.last_position for f in manifest.former if f.last_position < upto)}):
            if end > reached:
                # Of several registrations of one name the changes up to here are of the first that ended later.
                then = {f.columns.table.name: f.columns for f in reversed(manifest.former) if f.last_position >= end}
                yield LogStretch(reached, end, {**columns, **then})
                reached = end


def _joined(pieces: Iterable[LogStretch]) -> Iterator[LogStretch]:
    """Pieces with the same columns as one: files are looked through once for each."""
    before: LogStretch | None = None
    for piece in pieces:
        if before is not None and _alike(before.columns, piece.columns):
            before = replace(before, upto=piece.upto, columns={**before.columns, **piece.columns})
            continue
        if before is not None:
            yield before
        before = piece
    if before is not None:
        yield before


def _alike(some: Mapping[str, FileTable], others: Mapping[str, FileTable]) -> bool:
    """Whether the tables that both have are the same. A table that only one of them has, has no changes in the stretch
    of the other."""
    return all(_columns(some[name]) == _columns(others[name]) for name in some.keys() & others.keys())


def _columns(files: FileTable) -> tuple[object, ...]:
    return files.columns, files.table.former, files.table.key_columns
