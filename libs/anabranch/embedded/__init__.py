"""An embedded Postgres: a whole server in one folder, for ``anabranch up`` and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

UNSYNCED: Mapping[str, str] = MappingProxyType({"fsync": "off", "scram_iterations": "1"})
"""Further settings, for a server whose data is not needed once the machine is off. They lose nothing when the server
itself ends, in any way; where a disk is slow, or shared, the server is several times as fast. A password that was drawn
from more texts than anybody can try needs no more iterations, and these are most of what a connection costs."""
