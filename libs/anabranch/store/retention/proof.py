"""Proof, once more, right before the log is cut: the changes and the losing values that are to go are added up both in
Postgres and in the files.

The compactor proved each stretch when it published it. Since then files may have been lost, changed or merged; so the
janitor compares both sides again, and cuts nothing where they differ.
"""

from __future__ import annotations

from anabranch.columnar.evidence import Evidence, EvidenceError
from anabranch.columnar.file_columns import CHANGES, CONFLICTS
from anabranch.columnar.manifest import ManifestError, from_json
from anabranch.columnar.proof import Sum
from anabranch.store.lake.compactions import Published
from anabranch.store.lake.run_shapes import read_pieces
from anabranch.store.retention.floor import Kept, conflict_sum, log_sum
from anabranch.store.session.engine import Session


class Proof:
    """The newest published run, with its manifest's file checked.

    Raises:
        EvidenceError: the manifest is not there, or is not the published one.
    """

    def __init__(self, published: Published) -> None:
        try:
            manifest = from_json(published.manifest)
        except (ManifestError, KeyError, TypeError, ValueError) as error:
            raise EvidenceError(f"run {published.run_id}: its published manifest can't be read: {error!r}") from error
        self._root, self._manifest = published.root, manifest
        self._evidence = Evidence(published.root, manifest)
        self._evidence.require_manifest()

    def require_files(self, after: int, upto: int) -> None:
        """Check that the files of (``after``, ``upto``] are there, as large as published. Raises EvidenceError."""
        self._evidence.require_files(after, upto)

    def require(self, conn: Session, kept: Kept, after: int, upto: int) -> None:
        """Check that the log and the conflicts of (``after``, ``upto``] equal the files' rows, by number and sum.

        Raises:
            EvidenceError: they do not.
            psycopg.Error: the log can't be added up, or not in time.
        """
        self._evidence.require_files(after, upto)
        stretch = f"of ({after}, {upto}]"
        found = Sum()
        for piece in read_pieces(conn, kept.id, kept.epoch, after, upto):
            found += Evidence(self._root, piece.seen_in(self._manifest)).sum(CHANGES, piece.after, piece.upto)
        _require(stretch, "changes", found, "log", log_sum(conn, kept, after, upto))
        lost = self._evidence.sum(CONFLICTS, after, upto)
        _require(stretch, "values that lost", lost, "database", conflict_sum(conn, kept, after, upto))


def _require(stretch: str, what: str, found: Sum, where: str, wanted: Sum) -> None:
    if found != wanted:
        raise EvidenceError(
            f"{stretch} the files have {found.count} {what} with the sum {found.total:032x}, "
            f"the {where} has {wanted.count} with {wanted.total:032x}"
        )
