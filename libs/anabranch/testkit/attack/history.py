"""The history of restricted tables as an oracle of who may have seen what: every value with the span in which it stood
in a row, the row's audiences meanwhile, and the audiences that memberships gave each principal.

*Places* order all that happens: ``(position, ordinal)``, the ordinal counting the changes of one group. A span is from
the place of the change that made it to that of the one that ended it, without this. What memberships give changes
before all else of a position: a group's own set rules its changes.

It is told what happened (``put``, ``remove``, ``lose``, ``join``, ``send``), in the order of places, and knows nothing
of the code that decides it in the product. Answers are kept until it is told more: the same is asked many times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

Place: TypeAlias = tuple[int, int]
Audiences: TypeAlias = frozenset[str]

_BEGIN: Place = (-1, 0)
_NEVER = 2**63
_END: Place = (_NEVER, 0)
NOBODY: Audiences = frozenset()


@dataclass(slots=True)
class Span:
    """Audiences from one place to another, without this."""

    audiences: Audiences
    begin: Place
    end: Place = _END


@dataclass(slots=True)
class _Row:
    marks: frozenset[str]
    span: Span


@dataclass(slots=True)
class History:
    """The history so far. ``tables``: the restricted ones; ``groups``: the positions of all groups, in order."""

    tables: frozenset[str]
    groups: list[int] = field(default_factory=list)
    _rows: dict[tuple[str, str], _Row] = field(default_factory=dict)
    _spans: dict[str, list[tuple[str, Span]]] = field(default_factory=lambda: defaultdict(list))
    _of_row: dict[tuple[str, str], list[Span]] = field(default_factory=lambda: defaultdict(list))
    _values: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    _lost: dict[str, list[tuple[Place, Audiences, Audiences]]] = field(default_factory=lambda: defaultdict(list))
    _members: dict[str, list[Span]] = field(default_factory=dict)
    _sent: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    # Telling it of the past

    def put(self, place: Place, table: str, key: str, marks: Iterable[str], audiences: Iterable[str]) -> None:
        """A row is there from now on with these marked values, its key too where that is one, and these audiences."""
        self.remove(place, table, key)
        self._kept.clear()
        row = _Row(frozenset(marks), Span(frozenset(audiences), place))
        self._rows[table, key] = row
        self._spans[table].append((key, row.span))
        self._of_row[table, key].append(row.span)
        for mark in row.marks:
            self._values[mark].append(row.span)

    def remove(self, place: Place, table: str, key: str) -> None:
        """A row is there no longer, if it was."""
        row = self._rows.pop((table, key), None)
        if row is not None:
            row.span.end = place
            self._kept.clear()

    def lose(self, place: Place, mark: str, before: Iterable[str], after: Iterable[str]) -> None:
        """A value has lost a conflict; its row had the audiences ``before`` and ``after`` that change (before: none
        where the row was not there)."""
        self._lost[mark].append((place, frozenset(before), frozenset(after)))
        self._kept.clear()

    def join(self, position: int, principal: str, audiences: Iterable[str]) -> None:
        """From this position on memberships give a principal these audiences, and no others."""
        spans = self._members.setdefault(principal, [Span(NOBODY, _BEGIN)])
        if spans[-1].audiences == frozenset(audiences):
            return
        self._kept.clear()
        place = (position, -1)
        spans[-1].end = place
        spans.append(Span(frozenset(audiences), place))

    def send(self, principal: str, mark: str) -> None:
        """A principal has made a value itself, so that it may come back to it at any time."""
        self._sent[principal].add(mark)

    # Asking it

    def knows(self, mark: str) -> bool:
        """Whether the mark was ever a value here."""
        return mark in self._values or mark in self._lost or any(mark in sent for sent in self._sent.values())

    def audiences(self, mark: str) -> list[Audiences]:
        """The audiences under which a value stood, or lost, one after the other: for a report."""
        stood = [span.audiences for span in self._values.get(mark, ())]
        return stood + [after for _, _, after in self._lost.get(mark, ())]

    def later(self, position: int, groups: int) -> int:
        """The position so many groups after one, or the last one."""
        place = bisect_right(self.groups, position) + groups - 1
        return max(position, self.groups[min(place, len(self.groups) - 1)]) if self.groups else position

    def at(self, place: Place, table: str, key: str) -> Audiences:
        """The audiences of a row at a place; none where it was not there."""
        spans = self._of_row.get((table, key), [])
        return next((span.audiences for span in spans if span.begin <= place < span.end), NOBODY)

    def sees(self, principal: str, claimed: Collection[str], mark: str, reached: int, *, between: bool = False) -> bool:
        """Whether a principal whose token gives the audiences ``claimed`` may have got a value by the position
        ``reached``, from whatever position up to it. ``between``: also from a moment of the tables between the commits
        that one group has: a row may have come while a membership held that the same group ends."""
        if mark in self._sent[principal]:
            return True
        asked = ("sees", principal, frozenset(claimed), mark, between)
        if asked not in self._kept:
            self._kept[asked] = min(self._shown(principal, claimed, mark, between), default=_NEVER)
        return bool(self._kept[asked] <= reached)

    def _shown(self, principal: str, claimed: Collection[str], mark: str, between: bool) -> Iterator[int]:
        """Positions from which on a principal could see a value."""
        for span in self._values.get(mark, ()):
            # They come in order: the first one is the earliest.
            yield from (begin[0] for begin, _ in islice(self._seen(principal, claimed, span, between), 1))
        for place, before, after in self._lost.get(mark, ()):
            own = self._set(principal, claimed, place)
            if own & after and (not before or own & before):
                yield place[0]

    def holds(self, principal: str, claimed: Collection[str], audience: str, reached: int) -> bool:
        """Whether an audience was among a principal's at a position up to ``reached``."""
        if audience in claimed:
            return True
        asked = ("holds", principal, audience)
        if asked not in self._kept:
            spans = self._members.get(principal, ())
            self._kept[asked] = next((span.begin[0] for span in spans if audience in span.audiences), _NEVER)
        return bool(self._kept[asked] <= reached)

    def most_rows(self, principal: str, claimed: Collection[str], table: str, reached: int) -> int:
        """The most rows of a table that a principal could see at one position up to ``reached``."""
        asked = ("most", principal, frozenset(claimed), table)
        if asked not in self._kept:
            spans = [span for _, span in self._spans[table] if span.begin < span.end]
            self._kept[asked] = _most_at_once(spans, frozenset(claimed), self._members.get(principal, ()))
        positions, most = self._kept[asked]
        place = bisect_right(positions, reached)
        return int(most[place - 1]) if place else 0

    def rows_ever(self, principal: str, claimed: Collection[str], table: str, reached: int) -> int:
        """How many rows of a table a principal could see, each at some position up to ``reached``, or ``between`` two,
        as ``sees`` has it."""
        asked = ("ever", principal, frozenset(claimed), table)
        if asked not in self._kept:
            first: dict[str, int] = {}
            for key, span in self._spans[table]:
                for begin, _ in islice(self._seen(principal, claimed, span, between=True), 1):
                    first[key] = min(first.get(key, _NEVER), begin[0])
            self._kept[asked] = sorted(first.values())
        return bisect_right(self._kept[asked], reached)

    def counts(self, table: str, audience: str, reached: int) -> set[int]:
        """How many rows of a table an audience had at some position up to ``reached``: every number that was true."""
        asked = ("counts", table, audience)
        if asked not in self._kept:
            changes: dict[int, int] = defaultdict(int)
            for _, span in self._spans[table]:
                if audience in span.audiences:
                    changes[span.begin[0]] += 1
                    changes[span.end[0]] -= 1
            first, now = {0: -1}, 0
            for position in sorted(changes):
                now += changes[position]
                first.setdefault(now, position)
            self._kept[asked] = first
        return {count for count, position in self._kept[asked].items() if position <= reached}

    def _set(self, principal: str, claimed: Collection[str], place: Place) -> Audiences:
        spans = self._members.get(principal, [])
        at = bisect_right(spans, place, key=_begin) - 1
        return frozenset(claimed) | (spans[at].audiences if at >= 0 and place < spans[at].end else NOBODY)

    def _seen(
        self, principal: str, claimed: Collection[str], span: Span, between: bool = False
    ) -> Iterator[tuple[Place, Place]]:
        """The parts of a span in which the principal had one of its audiences, in order; ``between`` as in ``sees``."""
        if span.begin >= span.end:
            return
        if not span.audiences.isdisjoint(claimed):
            yield span.begin, span.end
            return
        spans = self._members.get(principal, [])
        # One of before counts a little longer where tables are looked at between commits.
        for at in range(max(0, bisect_right(spans, span.begin, key=_begin) - 1 - between), len(spans)):
            members = spans[at]
            if members.begin >= span.end:
                return
            left = (members.end[0] + 1, -1) if between else members.end
            begin, end = max(span.begin, members.begin), min(span.end, left)
            # A value that ends in the very group that gives the audience was never seen by it.
            lasts = span.begin >= members.begin or end[0] > members.begin[0]
            if begin < end and lasts and span.audiences & members.audiences:
                yield begin, end


def _begin(span: Span) -> Place:
    return span.begin


def _most_at_once(spans: Sequence[Span], claimed: Audiences, members: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Positions, in order, and the most rows (``spans``, none empty) that were seen at once up to each of them, by whom
    claims and memberships give the audiences ``claimed`` and ``members``, which follow each other. A row that ends in
    the very group that gives its audience was never seen by it."""
    events: list[tuple[Place, int, Span]] = []
    ending: dict[int, Counter[Audiences]] = defaultdict(Counter)
    for span in spans:
        events += [(span.begin, 1, span), (span.end, 0, span)]
        if span.begin[0] < span.end[0]:
            ending[span.end[0]][span.audiences] += 1
    events += [(one.begin, -1, one) for one in members]
    events.sort(key=lambda event: event[:2])
    there: Counter[Audiences] = Counter()
    leaving: Counter[Audiences] = Counter()
    given_at = _BEGIN[0]
    seen = claimed
    positions: list[int] = []
    found: list[int] = []
    most = 0
    for place, kind, span in events:
        if kind == -1:
            seen = claimed | span.audiences
            leaving, given_at = Counter(ending.get(place[0], {})), place[0]
        elif kind == 1:
            there[span.audiences] += 1
        else:
            there[span.audiences] -= 1
            if span.begin[0] < place[0] == given_at:
                leaving[span.audiences] -= 1
        now = sum(count for audiences, count in there.items() if audiences & seen)
        now -= sum(left for one, left in leaving.items() if one & seen and not one & claimed)
        most = max(most, now)
        positions.append(place[0])
        found.append(most)
    return positions, found
