"""A table as Spark's columns see it.

While rows are worked on, their columns have names of ours, so that a table's columns may have any: ``c0``, ``c1``, …
are the cells, in the table's order, and ``x0``, … the exact texts of those that their file column can't hold (only for
columns that may have such). In files they have the names of ``anabranch.columnar.file_columns``, and all that is ours
stands in one struct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from anabranch.columnar.file_columns import OWN, FileTable, may_need_text
from anabranch.schema import Table

KINDS = {1: "insert", 2: "update", 3: "delete", 4: "none"}
"""Numbers of ``anabranch.v1.EffectType`` to what files say."""
OLD, INSERT, UPDATE, DELETE, NONE = range(5)
"""OLD is none of the log: what a row was before the run."""
EXACT = T.MapType(T.StringType(), T.StringType())


def quoted(name: str) -> str:
    """A column's name in an expression of Spark's."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Shape:
    """One table's columns."""

    file_table: FileTable

    @property
    def table(self) -> Table:
        """The table."""
        return self.file_table.table

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.file_table.columns)

    @cached_property
    def names(self) -> list[str]:
        """Names in files, in the table's order."""
        return [c.file_name for c in self.file_table.columns]

    @cached_property
    def types(self) -> list[T.DataType]:
        """Spark's types, in the table's order."""
        return [from_arrow_type(c.type) for c in self.file_table.columns]

    @cached_property
    def with_text(self) -> list[int]:
        """Places of the columns that may need exact texts."""
        return [i for i, c in enumerate(self.table.columns) if may_need_text(c)]

    @cached_property
    def keys(self) -> list[str]:
        """What tells rows apart."""
        index = self.table.key_index
        return [f"c{i}" for i in index] + [f"x{i}" for i in index if i in self.with_text]

    @cached_property
    def key_columns(self) -> list[str]:
        """The key's cells, in the key's order."""
        return [f"c{i}" for i in self.table.key_index]

    @cached_property
    def sorting(self) -> list[str]:
        """What rows are sorted by in files: the key's cells, then their exact texts."""
        return [*self.key_columns, *(name for name in self.keys if name not in self.key_columns)]

    @cached_property
    def rest(self) -> list[int]:
        """Places of the columns that are not the key's."""
        return [i for i in range(self.width) if i not in self.table.key_index]

    @cached_property
    def cells(self) -> list[T.StructField]:
        """The fields that hold a row while it is worked on."""
        fields = [T.StructField(f"c{i}", kind) for i, kind in enumerate(self.types)]
        return fields + [T.StructField(f"x{i}", T.StringType()) for i in self.with_text]

    @cached_property
    def before(self) -> T.StructType:
        """The struct of the values before a change."""
        return T.StructType([T.StructField(self.names[i], self.types[i]) for i in self.rest])

    @cached_property
    def changes_schema(self) -> pa.Schema:
        """A row of ``changes/`` as Arrow has it."""
        columns = [pa.field(c.file_name, c.type) for c in self.file_table.columns]
        texts = pa.map_(pa.string(), pa.string())
        ours = [
            pa.field("position", pa.int64()),
            pa.field("batch", pa.string()),
            pa.field("ordinal", pa.int32()),
            pa.field("node", pa.string()),
            pa.field("type", pa.string()),
            pa.field("changed", pa.list_(pa.string())),
            pa.field("complete", pa.bool_()),
            pa.field("exact", texts),
            pa.field("exact_before", texts),
        ]
        if self.rest:
            ours.append(pa.field("before", pa.struct([columns[i] for i in self.rest])))
        return pa.schema([*columns, pa.field(OWN, pa.struct(ours))])

    @cached_property
    def changes(self) -> T.StructType:
        """A row of ``changes/``."""
        ours = [
            T.StructField("position", T.LongType()),
            T.StructField("batch", T.StringType()),
            T.StructField("ordinal", T.IntegerType()),
            T.StructField("node", T.StringType()),
            T.StructField("type", T.StringType()),
            T.StructField("changed", T.ArrayType(T.StringType())),
            T.StructField("complete", T.BooleanType()),
            T.StructField("exact", EXACT),
            T.StructField("exact_before", EXACT),
        ]
        if self.rest:
            ours.append(T.StructField("before", self.before))
        return self._file(ours)

    @cached_property
    def base(self) -> T.StructType:
        """A row of ``base/``."""
        ours = [
            T.StructField("position", T.LongType()),
            T.StructField("deleted", T.BooleanType()),
            T.StructField("exact", EXACT),
        ]
        return self._file(ours)

    @cached_property
    def conflicts(self) -> T.StructType:
        """A row of ``conflicts/``."""
        texts = ("key", "column", "losing_batch", "losing_node", "winning_batch", "winning_node")
        ours = [
            T.StructField("position", T.LongType()),
            T.StructField("batch", T.StringType()),
            T.StructField("ordinal", T.IntegerType()),
            *(T.StructField(name, T.StringType()) for name in texts),
            T.StructField("untyped", T.BinaryType()),
            T.StructField("exact", EXACT),
        ]
        return self._file(ours)

    def _file(self, ours: Sequence[T.StructField]) -> T.StructType:
        fields = [T.StructField(n, t) for n, t in zip(self.names, self.types, strict=True)]
        return T.StructType([*fields, T.StructField(OWN, T.StructType(list(ours)))])

    def exact(self, texts: Sequence[tuple[int, Column]]) -> Column:
        """The map of exact texts, NULL where none is needed. ``texts``: place and text of each column."""
        if not texts:
            return F.lit(None).cast(EXACT)
        pairs: list[Column] = []
        for i, text in texts:
            pairs += [F.lit(self.names[i]), text]
        needed = F.coalesce(*(text for _, text in texts)).isNotNull()
        return F.when(needed, F.map_filter(F.create_map(*pairs), lambda _, text: text.isNotNull()))

    def file_cells(self, cell: str = "c") -> list[Column]:
        """The cells under their names in files."""
        return [F.col(f"{cell}{i}").alias(name) for i, name in enumerate(self.names)]

    def read(self, spark: SparkSession, paths: Sequence[str], kind: T.StructType) -> DataFrame:
        """The rows of files, with the cells under the names of work, and ``ours`` for our struct."""
        file = F.col("_metadata.file_path") if paths else F.lit("")
        frame = spark.read.schema(kind).parquet(*paths) if paths else spark.createDataFrame([], kind)
        own = F.col(OWN)
        cells = [F.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(self.names)]
        texts = [own["exact"][self.names[i]].alias(f"x{i}") for i in self.with_text]
        return frame.select(*cells, *texts, own.alias("ours"), file.alias("file"))
