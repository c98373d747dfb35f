"""The node's report on itself: part of each call that reads, so that the server's operators know of it."""

from __future__ import annotations

from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.state import FileState
from anabranch.client.letters.dead_counts import DeadLetterCounts
from anabranch.client.reading import sums
from anabranch.client.reading.apply import AppliedPage
from anabranch.v1 import position_pb2


class Report:
    """Reports on ``file``, and remembers what was reported last."""

    def __init__(self, file: DeviceFile) -> None:
        self._file = file
        self._reported: frozenset[str] = frozenset()
        self._dead_letters = DeadLetterCounts()

    def of(self, current: FileState) -> position_pb2.NodeState:
        """The report of a state, with the tables that disagree and the dead letters."""
        reader = self._file.reader()
        found = sums.disagreements(reader)
        self._reported = frozenset(found)
        node_state = current.reader_state
        node_state.disagreements.extend(
            position_pb2.Disagreement(table=name, position=position) for name, position in found.items()
        )
        node_state.dead_letters.CopyFrom(self._dead_letters.report(reader))
        return node_state

    def has_news(self, applied: AppliedPage) -> bool:
        """Whether, after a page, tables disagree or there are dead letters of which the server was not told."""
        reader = self._file.reader()
        disagree = None if applied.standing is None else applied.standing.disagreements()
        if disagree is None:
            disagree = sums.disagreements(reader)
        return not self._reported.issuperset(disagree) or self._dead_letters.changed(reader)
