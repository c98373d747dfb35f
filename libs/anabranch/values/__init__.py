"""Values, and every form in which one travels or is held: shared by server and device.

A *kind* (``kinds``) says how the values of a Postgres type are carried, a *cell* (``cells``) is one value in plain
Python. There is a module for each form, and tests check that every kind passes through each of them unchanged:

====================  ================================================================================
module                form
====================  ================================================================================
``postgres_types``    which kind carries a type of Postgres, and which may be in a key
``postgres_text``     what Postgres prints and reads
``postgres_binary``   parameters in Postgres's binary format
``calendar``          dates and times as text, for all that have them so
``messages``          ``anabranch.v1.Value``
``message_bytes``     the same, serialized by hand
``arrow``             columns of a pull
``arrow_to_sqlite``   the same to what SQLite holds, with no cells between
``parquet``           columns of files
``sqlite``            what a device's file holds; decimals there: ``decimals``
``python``            what an app may write
``canonical``         the bytes under all sums
``keys``              the text of a key
====================  ================================================================================

``growth`` says how much longer a value becomes where Postgres prints it; ``identities`` how columns and tables are
known whatever they are called.

Only ``messages`` and ``message_bytes`` need protobuf, only ``arrow``, ``arrow_to_sqlite`` and ``parquet`` need pyarrow;
the others need only the standard library, and so do the modules that this package imports by itself.
"""

from anabranch.values.cells import Cell
from anabranch.values.keys import key_cells, key_text
from anabranch.values.kinds import Kind
from anabranch.values.table import Column, Table

__all__ = ["Cell", "Column", "Kind", "Table", "key_cells", "key_text"]
