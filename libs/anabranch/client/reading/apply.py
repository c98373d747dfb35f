"""Pages of the log into the file: whole groups, rows and cursor in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from anabranch.client.events import State
from anabranch.client.file import standing
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.standing import Standing
from anabranch.client.file.state import FileState
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.queue import settle, statements
from anabranch.client.reading import held, seen, sums
from anabranch.client.reading.effects import Folded, Folder, Spool
from anabranch.client.schema.follow import about_to_follow, follow
from anabranch.v1 import change_pb2, position_pb2

_ROWS_AT_ONCE = 20_000
_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AppliedPage:
    """The result of a page. ``asked_twice``: whether the log passed an own verdict twice without showing its batch.
    ``anew``: nothing of it was applied, as it tells of audiences at another place than the file's: the log is to be
    read anew from the cursor. ``state``, ``standing``: the file's after it, the latter as far as it is known."""

    state: FileState
    asked_twice: bool
    anew: bool = False
    standing: Standing | None = None

    @property
    def cursor_ms(self) -> int:
        """The cursor after it, in milliseconds."""
        return self.state.cursor_ms


class Applier:
    """Applies pages that follow each other. State model: ``_spool`` holds the parts of at most one group, which begins
    after the cursor; everything else is in the file, so that two readers that race apply nothing twice: groups at or
    below the cursor are skipped. ``_at`` is where the next page begins. ``reached`` is called before a page is applied
    and after it is in the file."""

    def __init__(self, file: DeviceFile, pendings: Pendings, reached: Callable[[str], None]) -> None:
        self._reached = reached
        self._file = file
        self._pendings = pendings
        self._spool = Spool()
        self._at = 0

    def restart(self, after: int) -> None:
        """Forget the parts of a group: the next page begins at ``after`` (milliseconds), where the cursor is."""
        self._spool.clear()
        self._at = after

    def _tell_before(self, groups: Sequence[change_pb2.LoggedGroup], spooled: bool) -> None:
        """Tell the app of the schema changes that are about to be applied."""
        if not self._file.listeners.schema:
            return
        current, changes = self._file.current(), dict[int, bytes]()
        if spooled and groups and self._spool.schema_change:
            changes[self._spool.position] = self._spool.schema_change
        changes.update((g.position, g.schema_change) for g in groups if g.schema_change)
        for position, data in sorted(changes.items()):
            event = about_to_follow(current, self._file.tables(), data, position)
            if position > current.cursor_ms and event is not None:
                self._file.listeners.tell(event)

    def page(
        self,
        page: change_pb2.Page,
        sums_at_end: Sequence[position_pb2.TableSum] = (),
        first: Callable[[Tx], None] = lambda tx: None,
    ) -> AppliedPage:
        """Apply the groups that are complete with ``page``, which must follow the last one given or the cursor.
        ``sums_at_end``: sums of tables at the position that the page reaches. ``first`` is called in the transaction
        before anything is changed; where it raises, nothing is applied.

        Raises:
            sqlite3.Error: the file can't be written; nothing of the page was applied.
        """
        whole = max((i + 1 for i, g in enumerate(page.groups) if not g.incomplete), default=0)
        groups, rest = page.groups[:whole], page.groups[whole:]
        spooled = bool(self._spool.position)
        batches = [b.id for g in groups for b in g.batches]
        if spooled and groups:
            batches += self._spool.batches
        told = frozenset(page.audiences.values) if page.HasField("audiences") else None
        self._tell_before(groups, spooled)
        self._reached("before_apply")
        with self._file.transaction() as tx:
            first(tx)
            if told is not None and not self._begins_with(tx, told):
                return AppliedPage(tx.state, False, True)
            applied = self._apply(tx, self._in_order(groups, spooled), batches, page.reached, sums_at_end)
        self._reached("after_apply")
        self._at = page.reached.server_timestamp_ms
        if groups:
            self._spool.clear()
        for part in rest:
            self._spool.add(part)
        self._file.listeners.deliver()
        return applied

    def _begins_with(self, tx: Tx, told: frozenset[str]) -> bool:
        """Hold the audiences that the server tells of where a page begins; False where the file is elsewhere."""
        if self._spool.position:
            change = self._spool.change or change_pb2.AudienceChange()
            before = held.held(tx.conn)
            return told in (before, (before - set(change.lost)) | set(change.gained))
        if self._at != tx.state.cursor_ms:
            return False
        held.become(tx, told, self._pendings)
        return True

    def _in_order(self, groups: Sequence[change_pb2.LoggedGroup], spooled: bool) -> Iterator[change_pb2.LoggedGroup]:
        if spooled and groups:
            yield from self._spool.parts()
        yield from groups

    def _apply(
        self,
        tx: Tx,
        parts: Iterable[change_pb2.LoggedGroup],
        batches: Sequence[str],
        reached: position_pb2.Position,
        sums_at_end: Sequence[position_pb2.TableSum],
    ) -> AppliedPage:
        cursor = tx.state.cursor_ms
        end = max(cursor, reached.server_timestamp_ms)
        tx.standing = standing.read(tx.conn)
        # Nothing is queued meanwhile.
        queued, touched = tx.standing.queued, settle.Touched()
        if queued:
            settle.seen(tx, batches)
            touched = settle.leave(tx, self._pendings, end)
        bases = _Bases(tx, self._pendings)
        for part in parts:
            if part.position > cursor:
                bases.take(part)
        bases.finish(touched)
        if bases.losers:
            settle.publish_losers(tx, bases.losers)
        if end > cursor:
            seen.saw(tx, reached, cursor_ms=end)
        bases.newest.update(((s.table, s.audience), s) for s in sums_at_end)
        if bases.newest and reached.server_timestamp_ms == tx.state.cursor_ms:
            sums.compare(tx, bases.newest.values(), tx.state.cursor_ms)
        passed = statements.covered(tx.conn, end) if queued else []
        twice = statements.ask_again(tx.conn, passed) if passed else []
        if passed:
            tx.events.append(State("error", f"the log passed the verdict of {passed[0]} without showing it"))
        return AppliedPage(tx.state, bool(twice), standing=tx.standing)


class _Bases:
    """The tables' bases while the groups of a page change them, in one transaction. ``losers`` and ``newest``: what was
    read of lost values, and the last sum of each table and audience."""

    def __init__(self, tx: Tx, pendings: Pendings) -> None:
        self._tx = tx
        self._pendings = pendings
        self._skip: dict[str, int] = {}
        self._lenient: dict[str, int] = {}
        for name, kept in (tx.standing or standing.read(tx.conn)).tables.items():
            self._skip[name] = kept.first_ms if kept.stage == "live" else _NEVER
            self._lenient[name] = kept.last_ms
        self._folder = self._new_folder()
        self._folded = Folded()
        self._altered_at = self._changed_at = 0
        self.losers: list[change_pb2.Loser] = []
        self.newest: dict[tuple[str, str], position_pb2.TableSum] = {}

    def _new_folder(self) -> Folder:
        return Folder(self._tx.tables, self._skip)

    def take(self, part: change_pb2.LoggedGroup) -> None:
        """Take one part of a group."""
        # First in their group: the batches are of tables, and of a reader, that are changed already.
        alters = bool(part.schema_change) and part.position != self._altered_at
        changes = part.HasField("audience_change") and part.position != self._changed_at
        if alters or changes or self._folded.rows > _ROWS_AT_ONCE:
            self._show({})
        if alters:
            self._altered_at = part.position
            self._alter(part)
        if changes:
            self._changed_at, change = part.position, part.audience_change
            with self._standing_anew():
                held.change(self._tx, change.gained, change.lost, self._pendings, part.position)
        self._folder.fold(part, self._folded)
        self.newest.update(((s.table, s.audience), s) for s in part.sums)

    @contextmanager
    def _standing_anew(self) -> Iterator[None]:
        """Read where the file stands again after the block, which changes tables at large."""
        self._tx.standing = None
        yield
        self._tx.standing = standing.read(self._tx.conn)

    def _alter(self, part: change_pb2.LoggedGroup) -> None:
        tx = self._tx
        with self._standing_anew():
            followed = follow(tx, part.schema_change, part.position, held.held(tx.conn), self._pendings)
        self._skip.update(dict.fromkeys(followed.aside, _NEVER))
        self._skip.update(dict.fromkeys(followed.came, 0))
        self.newest = {row: its for row, its in self.newest.items() if row[0] not in followed.changed}
        # It has compiled how effects are read into the tables of before.
        self._folder = self._new_folder()

    def _show(self, touched: settle.Touched) -> None:
        """Change the bases by what was folded so far, and show the ``touched`` rows again."""
        self._folded.read()
        self._skip.update(dict.fromkeys(self._folded.misfits, _NEVER))
        settle.show(self._tx, self._folded, touched, self._pendings, "remote", self._lenient)
        self.losers += self._folded.losers
        self._folded = Folded()

    def finish(self, touched: settle.Touched) -> None:
        """Change the bases by the rest, and show the rows again whose batches have left the queue."""
        self._folded.read()
        self._skip.update(dict.fromkeys(self._folded.misfits, _NEVER))
        # The own writes that a table shows are not in its base before it has been pulled.
        self._show({name: keys for name, keys in touched.items() if self._skip.get(name) != _NEVER})


def cut(page: change_pb2.Page, position: int) -> change_pb2.Page:
    """The part of a page up to ``position``, which is that of a group or before all of them."""
    return change_pb2.Page(
        groups=[group for group in page.groups if group.position <= position],
        reached=position_pb2.Position(epoch=page.reached.epoch, server_timestamp_ms=position),
        audiences=page.audiences if page.HasField("audiences") else None,
    )
