"""The values that lost, as files of conflicts have them, in the bytes in which Postgres keeps them.

A losing value stands in the file column of the column that lost, or as its bytes where that can't hold it. Since a
manifest lives longer than a table's columns, the file column may be one of a column that is gone. The bytes are those
of a message, which is made value by value: there is no form of it by columns, and few values lose.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columnar.file_columns import FileTable
from anabranch.values.message_bytes import Writer, value_bytes
from anabranch.values.parquet import FileCodec, file_codecs, may_need_text


class LosingValues:
    """Those of one table."""

    def __init__(self, files: FileTable) -> None:
        # By the column's name, the file columns that may have its values, the newest first.
        self._places: dict[str, list[tuple[str, FileCodec, Writer]]] = {}
        codecs = file_codecs(one.column for one in files.ever)
        for one, codec in zip(files.ever, codecs, strict=True):
            self._places.setdefault(one.column.name, []).append((one.file_name, codec, value_bytes(one.column)))

    def of(self, rows: pa.RecordBatch, own: Mapping[str, pa.Array]) -> pa.Array:
        """The serialized value of each of a file's rows. ``own``: the fields of our struct.

        Raises:
            KeyError: the table never had the column that lost.
        """
        found = own["untyped"].to_pylist()
        typed = own["untyped"].is_null()
        for name in own["column"].filter(typed).unique().to_pylist():
            chosen = pc.indices_nonzero(pc.and_(typed, pc.equal(own["column"], name)))
            places = chosen.to_pylist()
            for file_name, codec, write in self._places[name]:
                if file_name not in rows.schema.names:
                    continue
                texts = None
                if may_need_text(codec.column):
                    texts = pc.map_lookup(own["exact"].take(chosen), pa.scalar(file_name), "first").to_pylist()
                for at, cell in zip(places, codec.read(rows.column(file_name).take(chosen), texts), strict=True):
                    if cell is not None and found[at] is None:
                        found[at] = write(cell)
            # NULL is the same in every place.
            null = self._places[name][0][2](None)
            for at in places:
                found[at] = null if found[at] is None else found[at]
        return pa.array(found, pa.binary())
