"""The rows of a base that a reader may see: those of a restricted table that are of its audiences.

A base has everybody's rows, without their audiences. The table's expression is evaluated by Postgres, as anywhere; it
is immutable, so once for all rows with the same values of what it reads. Of a batch only these values become cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.session.engine import Session
from anabranch.values import Cell, Kind, Table
from anabranch.values.parquet import file_codecs
from anabranch.wire.audiences import AUDIENCE_COLUMN

_OF_ROW = pa.list_(pa.string())


class SeenRows:
    """Picks the rows of ``audiences`` out of batches of one table. ``session`` gives the session in which its
    expression is evaluated, and is called only where a batch has values that are new. One thread at a time."""

    def __init__(
        self, table: Table, audience: Audience, audiences: frozenset[str], session: Callable[[], Session]
    ) -> None:
        self._of_rows = RowAudiences(table, audience)
        self._audiences = audiences
        self._session = session
        self._places = [table.index[name] for name in audience.columns]
        self._codecs = file_codecs([table.by_name[name] for name in audience.columns])

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are seen, with their audiences in one more column (``AUDIENCE_COLUMN``), as from Postgres.

        Raises:
            psycopg.Error: the expression can't be evaluated.
        """
        which, columns = self._distinct(batch)
        keys = self._of_rows.keys_of(columns) if columns else [()]
        if any(self._of_rows.at(key) is None for key in keys):
            self._of_rows.learn_keys(self._session(), keys)
        found = [self._of_rows.at(key) or () for key in keys]
        seen = pa.array([not self._audiences.isdisjoint(one) for one in found], pa.bool_())
        whose = pa.array(found, _OF_ROW)
        mask = seen.take(which)
        rows = batch.filter(mask)
        names = [*batch.schema.names, AUDIENCE_COLUMN]
        return pa.RecordBatch.from_arrays([*rows.columns, whose.take(which.filter(mask))], names=names)

    def _distinct(self, batch: pa.RecordBatch) -> tuple[pa.Array, Sequence[Sequence[Cell]]]:
        """The distinct values of what the expression reads, column by column, and which of them each row has."""
        which: pa.Array = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        columns: list[list[Cell]] = []
        for place, codec in zip(self._places, self._codecs, strict=True):
            values = batch.column(place)
            # By their bits: zero and minus zero are two values.
            bits = values.view(pa.int64()) if codec.column.kind is Kind.DOUBLE else values
            encoded = pc.dictionary_encode(bits, "encode")
            cells = codec.pulled_cells(encoded.dictionary.view(values.type))
            pairs = pc.dictionary_encode(pc.add(pc.multiply(which, len(cells)), encoded.indices.cast(pa.int64())))
            which = pairs.indices.cast(pa.int64())
            numbers: list[int] = pairs.dictionary.to_pylist()
            columns = [[one[number // len(cells)] for number in numbers] for one in columns]
            columns.append([cells[number % len(cells)] for number in numbers])
        return which, columns
