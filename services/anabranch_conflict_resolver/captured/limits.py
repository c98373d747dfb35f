"""The limits of the captured changes that a group takes at once."""

from __future__ import annotations

from anabranch.store.capture import captured

MOST_ROWS = 5_000
"""The most captured rows that a group takes at once. Between two statements it works on all of them, for less than a
tenth of the time after which a silent session loses its claim."""
MOST_BYTES = captured.MOST_BYTES
"""The most bytes of the images of these rows."""
