"""Protobuf read by columns: the same field of many messages at once, with numpy, where they lie in an Arrow column.

The wire format: a field is a varint ``number << 3 | type`` and its content; type 0 is a varint, 1 eight bytes
little-endian, 2 a varint of length and that many bytes. Places are indexes into the column's data. A read at a place
that holds something else gives nonsense, but never goes beyond the data: callers check the tags first.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Places: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"

_LONGEST_VARINT = 10
_MARGIN = 16
"""Bytes behind the data, so that looking a little too far is harmless."""


class Messages:
    """The data of a binary column, and where each of its values begins and ends."""

    def __init__(self, values: pa.Array) -> None:
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        first, last = (int(offsets[0]), int(offsets[-1])) if len(values) else (0, 0)
        self.data: Bytes = np.zeros(last - first + _MARGIN, np.uint8)
        if last > first:
            self.data[: last - first] = np.frombuffer(values.buffers()[2], np.uint8)[first:last]
        self.starts: Places = offsets[:-1].astype(np.int64) - first
        self.ends: Places = offsets[1:].astype(np.int64) - first
        self._most = last - first

    def byte(self, at: Places) -> Bytes:
        """The byte at each place."""
        return self.data[np.minimum(at, self._most)]

    def varint(self, at: Places) -> tuple[npt.NDArray[np.uint64], Places]:
        """The varint at each place, and the place behind it."""
        byte = self.byte(at)
        number = (byte & 127).astype(np.uint64)
        after = at + 1
        more = np.flatnonzero(byte & 128)
        for count in range(1, _LONGEST_VARINT):
            if not len(more):
                break
            byte = self.byte(at[more] + count)
            number[more] |= (byte & 127).astype(np.uint64) << np.uint64(7 * count)
            after[more] += 1
            more = more[(byte & 128) != 0]
        return number, after

    def size(self, at: Places) -> tuple[Places, Places]:
        """The length that stands at each place, and the place behind it. One that is too large is cut."""
        number, after = self.varint(at)
        return np.minimum(number, np.uint64(self._most)).astype(np.int64), after

    def doubles(self, at: Places) -> npt.NDArray[np.float64]:
        """The eight bytes at each place."""
        wide = np.lib.stride_tricks.sliding_window_view(self.data, 8)
        found: npt.NDArray[np.float64] = wide[np.minimum(at, self._most)].reshape(-1).view("<f8")
        return found

    def slices(self, starts: Places, ends: Places, there: Flags, kind: pa.DataType) -> pa.Array:
        """The stretches of data as strings or bytes, NULL where not ``there``. They are in the order of the data.

        Raises:
            pyarrow.ArrowInvalid: a string is not UTF-8.
        """
        # An Arrow column of the wanted stretches and the gaps between them, of which every other value is taken.
        bounds = np.empty(2 * len(starts) + 1, np.int32)
        bounds[0:-1:2], bounds[1::2] = starts, ends
        bounds[-1] = bounds[-2] if len(starts) else 0
        np.maximum.accumulate(bounds, out=bounds)
        both = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        )
        chosen = pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32), mask=None if there.all() else ~there)
        taken = both.take(chosen)
        return taken if kind == pa.binary() else taken.cast(kind)

    def prefixes(self, messages: Places, size: int) -> Bytes:
        """The first ``size`` bytes of each of some ``messages``, a row each."""
        if size == 0:
            return np.empty((len(messages), 0), np.uint8)
        wide = np.lib.stride_tricks.sliding_window_view(self.data, size)
        found: Bytes = wide[self.starts[messages]]
        return found
