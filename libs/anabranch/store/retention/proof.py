"""Proof, once more, right before the log is cut: what is to go is added up in Postgres and in the files, changes and
the values that lost alike.

The compactor proved each stretch when it published it. Since then files may have been lost, changed or put together
anew; so the janitor looks at both sides again, and cuts nothing that does not add up.
"""

from __future__ import annotations

from anabranch.columnar.evidence import Evidence, EvidenceError
from anabranch.columnar.manifest import ManifestError, from_json
from anabranch.columnar.proof import Sum
from anabranch.store.lake.compactions import Published
from anabranch.store.lake.conflict_proof import conflicts_sum
from anabranch.store.lake.run_shapes import read_pieces
from anabranch.store.retention.floor import Kept, conflict_sum, log_sum
from anabranch.store.session.engine import Session
from anabranch.values.parquet import file_codecs


class Proof:
    """The newest published run, with its manifest's file looked at.

    Raises:
        EvidenceError: the manifest is not there, or is not what was published.
    """

    def __init__(self, published: Published) -> None:
        try:
            manifest = from_json(published.manifest)
        except (ManifestError, KeyError, TypeError, ValueError) as error:
            raise EvidenceError(f"run {published.run_id}: what it published can't be read: {error!r}") from error
        self._root, self._manifest = published.root, manifest
        self._evidence = Evidence(published.root, manifest, file_codecs)
        self._evidence.require_manifest()

    def require_files(self, after: int, upto: int) -> None:
        """The files of (``after``, ``upto``] are there, as large as they were. Raises EvidenceError."""
        self._evidence.require_files(after, upto)

    def require(self, conn: Session, kept: Kept, after: int, upto: int) -> None:
        """The log and the conflicts of (``after``, ``upto``] and the files' rows of it are equal, by number and sum.

        Raises:
            EvidenceError: they are not.
            psycopg.Error: the log can't be added up, or not in time.
        """
        self._evidence.require_files(after, upto)
        stretch = f"of ({after}, {upto}]"
        found = Sum()
        for piece in read_pieces(conn, kept.id, kept.epoch, after, upto):
            evidence = Evidence(self._root, piece.seen_in(self._manifest), file_codecs)
            found += evidence.changes_sum(piece.after, piece.upto)
        _require(stretch, "changes", found, "log", log_sum(conn, kept, after, upto))
        lost = conflicts_sum(self._root, self._manifest, after, upto)
        _require(stretch, "values that lost", lost, "database", conflict_sum(conn, kept, after, upto))


def _require(stretch: str, what: str, found: Sum, where: str, wanted: Sum) -> None:
    if found != wanted:
        raise EvidenceError(
            f"{stretch} the files have {found.count} {what} with the sum {found.total:032x}, "
            f"the {where} has {wanted.count} with {wanted.total:032x}"
        )
