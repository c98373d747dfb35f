"""Select the columns of a pull, and turn the driver's arrays into those of the contract (``anabranch.values.arrow``), a
whole column at a time.

The driver (ADBC) reads Postgres's binary format. It moves timestamps and dates from the epoch of 2000 to that of 1970
by an addition that wraps around, and knows no infinity. A wrapped value lies below every value that Postgres holds (its
first day is in 4714 BC), so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.store.cells.binary_cells import array_text, is_built_in, output_text, quote, read_expression
from anabranch.values import Column, Kind, Table
from anabranch.values.arrow import arrow_type
from anabranch.values.calendar import timestamp_text
from anabranch.values.cells import DATE_INFINITY, DATE_MINUS_INFINITY, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY
from anabranch.values.postgres_binary import EPOCH_DAYS, EPOCH_US
from anabranch.values.table import has_zone

_FIRST_US = -211_000_000_000_000_000
_FIRST_DAY = -2_500_000
"""A little before the first moment and the first day that Postgres holds."""
_WRAPPED_INFINITY_US = TIMESTAMP_INFINITY + EPOCH_US - 2**64
_WRAPPED_MINUS_INFINITY_US = TIMESTAMP_MINUS_INFINITY + EPOCH_US
_WRAPPED_INFINITY_DAY = DATE_INFINITY + EPOCH_DAYS - 2**32
_WRAPPED_MINUS_INFINITY_DAY = DATE_MINUS_INFINITY + EPOCH_DAYS


def pull_expression(column: Column, relation: str) -> str:
    """The expression that selects ``column`` of ``relation`` (quoted, or an alias)."""
    reference = f"{relation}.{quote(column.sql_name)}"
    if column.kind is Kind.STRING and not is_built_in(column.postgres_type):
        # An enum, or a domain, which may be one over char(n): as its output function prints it. So the driver reads
        # built-in types only, and need not know those that were created since it read the catalog.
        return output_text(reference)
    if column.kind is not Kind.ARRAY:
        return read_expression(column, relation)
    array = array_text(column, reference)
    match column.element_kind:
        case Kind.STRING if array == reference:
            # A cast to text would cut the blanks of char(n).
            elements = reference
        case Kind.DOUBLE:
            # As float8 a real's text is exact when read as such.
            elements = f"{array}::float8[]::text[]"
        case _:
            elements = f"{array}::text[]"
    # Bounds other than one are printed before the elements; JSON would lose them.
    return (
        f"case when pg_catalog.left({array}::text, 1) = '[' then {read_expression(column, relation)} "
        f"else pg_catalog.to_json({elements})::text end"
    )


def select_list(table: Table, relation: str) -> str:
    """The select list of a table's columns, under their identities."""
    return ", ".join(f"{pull_expression(column, relation)} as {quote(column.name)}" for column in table.columns)


Mend = Callable[[pa.Array], pa.Array]


def mender(column: Column) -> Mend:
    """The function that turns a column from the driver into the array that carries it."""
    match column.kind:
        case Kind.TIMESTAMP:
            kind, zone = arrow_type(column), has_zone(column)
            return lambda values: _timestamps(values, kind, zone)
        case Kind.DATE:
            return _dates
    kind = arrow_type(column)

    def cast(values: pa.Array) -> pa.Array:
        return values if values.type == kind else values.cast(kind)

    return cast


def _timestamps(values: pa.Array, kind: pa.DataType, zone: bool) -> pa.Array:
    numbers = values.view(pa.int64())
    bounds = pc.min_max(numbers)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or (least >= _FIRST_US and most < TIMESTAMP_INFINITY):
        return numbers.view(kind)
    infinite = pc.equal(numbers, _WRAPPED_INFINITY_US)
    minus_infinite = pc.equal(numbers, _WRAPPED_MINUS_INFINITY_US)
    wrapped = pc.less(numbers, _FIRST_US)
    beyond = pc.or_(pc.and_not(wrapped, pc.or_(infinite, minus_infinite)), pc.equal(numbers, TIMESTAMP_INFINITY))
    mended = pc.if_else(infinite, pa.scalar(TIMESTAMP_INFINITY, pa.int64()), numbers)
    mended = pc.if_else(minus_infinite, pa.scalar(TIMESTAMP_MINUS_INFINITY, pa.int64()), mended)
    if not pc.any(beyond).as_py():
        return mended.view(kind)
    texts = [
        None if us is None else timestamp_text(us + 2**64 if us < 0 else us, zone=zone) if far else str(us)
        for us, far in zip(mended.to_pylist(), beyond.to_pylist(), strict=True)
    ]
    return pa.array(texts, pa.string())


def _dates(values: pa.Array) -> pa.Array:
    numbers = values.view(pa.int32())
    least = pc.min(numbers).as_py()
    if least is None or least >= _FIRST_DAY:
        return values
    infinite = pc.equal(numbers, pa.scalar(_WRAPPED_INFINITY_DAY, pa.int32()))
    minus_infinite = pc.equal(numbers, pa.scalar(_WRAPPED_MINUS_INFINITY_DAY, pa.int32()))
    mended = pc.if_else(infinite, pa.scalar(DATE_INFINITY, pa.int32()), numbers)
    mended = pc.if_else(minus_infinite, pa.scalar(DATE_MINUS_INFINITY, pa.int32()), mended)
    return mended.view(pa.date32())
