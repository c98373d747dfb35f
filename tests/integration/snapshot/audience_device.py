"""A device of a few lines that follows the log of a restricted table as the contract says."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tests.integration.snapshot.audience_writer import Row
from tests.integration.snapshot.pulled import Pulled

from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.v1 import change_pb2, position_pb2

COLUMNS = ("id", "team", "title")


def held(*audiences: str, choice: Sequence[str] | None = None) -> position_pb2.HeldAudiences:
    """The audiences that a node holds, as it tells of them."""
    digest = blake2b(b"".join(one.encode() + b"\0" for one in sorted(audiences)), digest_size=16).digest()
    return position_pb2.HeldAudiences(digest=digest, chosen=choice is not None, choice=choice or ())


class Device:
    """Rows of ``job``, each with its audiences, and what the device holds."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.cursor = 0
        self.audiences: set[str] = set()
        self.rows: dict[str, tuple[Row, frozenset[str]]] = {}
        self.batches: list[str] = []
        self.pulls = 0
        self._parts: list[change_pb2.Page] = []
        self._gained: set[str] = set()

    @property
    def seen(self) -> dict[str, Row]:
        """Its rows."""
        return {key: row for key, (row, _) in self.rows.items()}

    def catch_up(self, max_bytes: int = 0) -> None:
        """Page to the head, and pull what was gained."""
        self.reader.held = held(*self.audiences)
        for page in self.reader.pages(self.cursor, max_bytes):
            self.take(page)
        self.pull()

    def take(self, page: change_pb2.Page) -> None:
        """Apply a page; groups only once they are whole."""
        if page.HasField("audiences") and not self._parts:
            self._become(set(page.audiences.values))
        self._parts.append(page)
        if any(group.incomplete for group in page.groups[-1:]):
            return
        for group in whole_groups(self._parts):
            self._apply(group)
        self._parts.clear()
        self.cursor = max(self.cursor, page.reached.server_timestamp_ms)

    def pull(self) -> None:
        """Pull what was gained."""
        if not self._gained:
            return
        self.pulls += 1
        pulled = Pulled().all(self.reader.pull([("job", b"")], audiences=sorted(self._gained)))
        exact = self._gained & set(pulled.done["job"].audiences.values) & self.audiences
        for *row, whose in pulled.rows.get("job", []):
            if exact.intersection(whose):
                self.rows[row[0]] = (tuple(row), frozenset(whose))
        self._gained.clear()

    def _become(self, audiences: set[str]) -> None:
        self._gained = (self._gained & audiences) | (audiences - self.audiences)
        kept, self.audiences = self.audiences & audiences, audiences
        for key, (_, whose) in list(self.rows.items()):
            # Also one that it would see by what it gains: that comes whole.
            if whose.isdisjoint(kept):
                del self.rows[key]

    def _apply(self, group: change_pb2.LoggedGroup) -> None:
        change = group.audience_change
        if change.gained or change.lost:
            self._become((self.audiences - set(change.lost)) | set(change.gained))
        for batch in group.batches:
            self.batches.append(batch.id)
            assert not batch.effect_incomplete
            for i, data in enumerate(batch.effects):
                effect = change_pb2.Effect.FromString(data)
                if effect.table == "job":
                    whose = frozenset(batch.audiences[i].values) if batch.audiences else frozenset()
                    self._effect(effect, whose)

    def _effect(self, effect: change_pb2.Effect, whose: frozenset[str]) -> None:
        key = effect.values[0].string_value
        given = {
            name: value.string_value if value.WhichOneof("kind") == "string_value" else None
            for name, value in zip(effect.columns, effect.values, strict=True)
        }
        if effect.type == change_pb2.EFFECT_TYPE_DELETE:
            self.rows.pop(key, None)
        elif effect.type != change_pb2.EFFECT_TYPE_NONE and (key in self.rows or len(given) == len(COLUMNS)):
            assert whose & self.audiences, "a row that is not to be seen"
            before = dict(zip(COLUMNS, self.rows[key][0], strict=True)) if key in self.rows else {}
            row = before | given
            self.rows[key] = (tuple(row[name] for name in COLUMNS), whose)  # type: ignore[assignment]
