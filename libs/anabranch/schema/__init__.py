"""What a synced table looks like, and how its cells are held: shared by server and device, standard library only."""

from anabranch.schema.cells import Cell, key_cells, key_text
from anabranch.schema.table import Column, Kind, Table

__all__ = ["Cell", "Column", "Kind", "Table", "key_cells", "key_text"]
