"""What a row was before and after each change, by Spark's own operators.

An effect gives what it changed. Put in order behind the row as it was before the run (kind OLD, where known), each
column has the last value that any change gave it. A change is *complete* when the row's other columns are known: always
but for changes of rows older than the log and the table's first base.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from anabranch.columnar.file_columns import OWN
from anabranch_compactor.shape import DELETE, INSERT, KINDS, NONE, OLD, UPDATE, Shape

ORDER = ("position", "batch", "ordinal")


def changes_of(shape: Shape, log: DataFrame, old: DataFrame | None, partitions: int) -> DataFrame:
    """The rows of ``changes/`` for the log rows ``log`` (``Shape.log``), over the rows ``old`` as they were before
    (the same columns, kind OLD). Sorted within partitions by key and position."""
    rows = log if old is None else log.unionByName(old)
    keys = [F.col(name) for name in shape.keys]
    rows = rows.repartition(partitions, *keys)
    before = Window.partitionBy(*keys).orderBy(*ORDER).rowsBetween(Window.unboundedPreceding, -1)
    kind = F.col("kind")
    states = {f"s{i}": F.last(_state(shape, i), ignorenulls=True).over(before) for i in shape.rest}
    there = F.when(kind.isin(OLD, INSERT), F.lit(True)).when(kind == DELETE, F.lit(False))
    states["known"] = F.last(there, ignorenulls=True).over(before)
    rows = rows.withColumns(states).where(kind != OLD)
    key_order = [*shape.key_columns, *(k for k in shape.keys if k not in shape.key_columns)]
    rows = rows.sortWithinPartitions(*key_order, *ORDER)
    return rows.select(*_after(shape), _own(shape).alias(OWN))


def _state(shape: Shape, i: int) -> Column:
    """What a change says of column ``i``: a struct of its cell, or NULL where it says nothing."""
    kind = F.col("kind")
    gone = [F.lit(None).cast(shape.types[i]).alias("c")]
    given = [F.col(f"c{i}").alias("c")]
    if i in shape.with_text:
        gone.append(F.lit(None).cast("string").alias("x"))
        given.append(F.col(f"x{i}").alias("x"))
    return F.when(kind == DELETE, F.struct(*gone)).when(
        kind.isin(OLD, INSERT) | ((kind == UPDATE) & _changed(shape, i)), F.struct(*given)
    )


def _changed(shape: Shape, i: int) -> Column:
    return F.array_contains("changed", F.lit(shape.table.columns[i].name))


def _value(shape: Shape, i: int, part: str) -> Column:
    """A cell (part "c") or its exact text ("x") after the change."""
    if i not in shape.rest:
        return F.col(f"{part}{i}")
    kind, before = F.col("kind"), F.col(f"s{i}")[part]
    given = (kind == INSERT) | ((kind == UPDATE) & _changed(shape, i))
    return F.when(given, F.col(f"{part}{i}")).when(kind == DELETE, F.lit(None)).otherwise(before)


def _before(shape: Shape, i: int, part: str) -> Column:
    """What the change took away."""
    kind = F.col("kind")
    return F.when((kind == DELETE) | ((kind == UPDATE) & _changed(shape, i)), F.col(f"s{i}")[part])


def _after(shape: Shape) -> list[Column]:
    return [_value(shape, i, "c").alias(name) for i, name in enumerate(shape.names)]


def _own(shape: Shape) -> Column:
    kind = F.col("kind")
    names = F.create_map(*(F.lit(part) for number, name in KINDS.items() for part in (number, name)))
    fields: list[Column] = [
        *(F.col(name) for name in ("position", "batch", "ordinal", "node")),
        names[kind.cast("int")].alias("type"),
        F.col("changed"),
        ((kind == INSERT) | F.col("known").isNotNull()).alias("complete"),
        shape.exact([(i, _value(shape, i, "x")) for i in shape.with_text]).alias("exact"),
        shape.exact([(i, _before(shape, i, "x")) for i in shape.with_text if i in shape.rest]).alias("exact_before"),
    ]
    if shape.rest:
        columns = [_before(shape, i, "c").alias(shape.names[i]) for i in shape.rest]
        fields.append(F.struct(*columns).alias("before"))
    return F.struct(*fields)


def last_of(shape: Shape, changes: DataFrame) -> DataFrame:
    """The rows that changes (as ``Shape.read`` gives them) left, one a key, with ``position`` and ``deleted``. A change
    of kind NONE changes nothing."""
    ours = F.col("ours")
    cells = [field.name for field in shape.cells]
    place = F.struct(*(ours[name] for name in ORDER))
    kept = [name for name in cells if name not in shape.keys]
    last = F.struct(*kept, ours["position"].alias("position"), (ours["type"] == KINDS[DELETE]).alias("deleted"))
    found = changes.where(ours["type"] != KINDS[NONE]).groupBy(*shape.keys).agg(F.max_by(last, place).alias("last"))
    return found.select(*shape.keys, "last.*").select(*cells, "position", "deleted")
