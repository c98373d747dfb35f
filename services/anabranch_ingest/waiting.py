"""Tracks which calls wait for which verdicts, and delivers the verdicts to them.

A *ticket* is the wait of one call. A batch is put on a ticket when it was appended by this call, or was found to
wait with the same content and principal. From then on it is *watched*, until a verdict is delivered or the ticket is
closed. A verdict is compared with the ticket when it is delivered, because two processes may append the same id at the
same moment: a caller that sent other content, or is another principal, gets the verdict of a reuse.

A watched batch becomes *due* when a notification names it, or had named it before it was watched (the last of those are
remembered), or when it was watched for the whole of a poll interval. The fetcher looks up all that is due with one
statement; batches without a verdict are still watched. A lost notification, a lost connection and a slow start so cost
time and never a verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from anabranch.store.inbox.verdicts import DecidedBatch, Key
from anabranch.store.session.listening import Heard
from anabranch_ingest import answers

REMEMBERED_IDS = 20_000
"""Ids of decided batches that are remembered at least, twice as many at most."""


class Ticket:
    """The verdicts of one call, serialized. ``found`` holds those delivered and not yet taken, by batch id;
    ``placeless`` those that belong to no id, or to an id that is watched for other content; ``missing`` the batches
    watched, with the SHA-256 of their payloads. ``given_up``: no call is to wait any longer. ``newest``: the greatest
    position of a verdict that was delivered, in milliseconds."""

    __slots__ = ("_changed", "found", "given_up", "missing", "newest", "placeless", "principal")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.found: dict[str, bytes] = {}
        self.placeless: list[bytes] = []
        self.missing: dict[str, bytes] = {}
        self.given_up = False
        self.newest = 0
        self._changed: asyncio.Future[None] | None = None

    def deliver(self, batch_id: str, verdict: bytes, position: int = 0) -> None:
        """Put a verdict on the ticket; it was given at ``position``, in milliseconds."""
        self.found[batch_id] = verdict
        self.newest = max(self.newest, position)
        self.missing.pop(batch_id, None)
        self.wake()

    def decide(self, batch_id: str, decided: DecidedBatch) -> None:
        """Put the verdict on a watched batch on the ticket, if it is one on what the ticket watches."""
        if decided.payload_sha256 == self.missing.get(batch_id) and decided.principal == self.principal:
            self.deliver(batch_id, decided.verdict, decided.position)
        elif batch_id in self.missing:
            self.deliver(batch_id, answers.reused(batch_id))

    def refuse(self, batch_id: str, verdict: bytes) -> None:
        """Put on it the verdict on other content under the id; the batch that has the id may be watched as well."""
        if batch_id in self.missing or batch_id in self.found:
            self.placeless.append(verdict)
            self.wake()
        else:
            self.deliver(batch_id, verdict)

    def give_up(self) -> None:
        """End every wait on this ticket."""
        self.given_up = True
        self.wake()

    def wake(self) -> None:
        """Have ``changed`` return."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def changed(self) -> None:
        """Wait for the next delivery or ``wake``. One task at a time; what happened before is not noticed."""
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    async def complete(self, timeout_s: float) -> None:
        """Wait until nothing is missing, at most ``timeout_s`` seconds."""
        if not self.missing:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while self.missing and not self.given_up:
                    await self.changed()
        except TimeoutError:
            return


class WatchedBatches:
    """All batches watched in this process. Everything happens in one event loop."""

    def __init__(self) -> None:
        self._watched: dict[Key, list[Ticket]] = {}
        self._due: set[Key] = set()
        self._young: set[Key] = set()
        self._recent: set[Key] = set()
        self._older: set[Key] = set()
        self._work = asyncio.Event()

    def watch(self, ticket: Ticket, database_id: int, batches: Mapping[str, bytes]) -> None:
        """Put batches, given by id with the SHA-256 of their payloads, on a ticket."""
        watched = self._watched
        ticket.missing.update(batches)
        for batch_id in batches:
            key = (database_id, batch_id)
            tickets = watched.get(key)
            if tickets is None:
                watched[key] = [ticket]
            else:
                tickets.append(ticket)
            self._young.add(key)
            if key in self._recent or key in self._older:
                self._due.add(key)
        if self._due:
            self._work.set()

    def close(self, ticket: Ticket, database_id: int) -> None:
        """Take off everything that is still missing on a ticket. It stays in ``missing``."""
        for batch_id in ticket.missing:
            key = (database_id, batch_id)
            tickets = self._watched.get(key)
            if tickets is None:
                continue
            if ticket in tickets:
                tickets.remove(ticket)
            if not tickets:
                del self._watched[key]
                self._due.discard(key)
                self._young.discard(key)

    def hear(self, heard: Heard) -> None:
        """Take in a notification."""
        database_id = heard.database_id
        keys = [(database_id, batch_id) for batch_id in heard.batch_ids]
        self._recent.update(keys)
        if len(self._recent) > REMEMBERED_IDS:
            self._older, self._recent = self._recent, set()
        named = self._watched.keys() & keys
        if named:
            self._due |= named
            self._work.set()

    def poll(self) -> None:
        """Have everything looked up that was watched already at the last call of ``poll``."""
        old = self._watched.keys() - self._young
        self._young.clear()
        if old:
            self._due |= old
            self._work.set()

    def look_at_all(self) -> None:
        """Have everything looked up: notifications may have been missed."""
        self._due |= self._watched.keys()
        if self._due:
            self._work.set()

    async def due(self, most: int) -> list[Key]:
        """Wait for batches that are due, and take up to ``most`` of them."""
        while not self._due:
            self._work.clear()
            await self._work.wait()
        if len(self._due) <= most:
            taken, self._due = list(self._due), set()
            return taken
        return [self._due.pop() for _ in range(most)]

    def decide(self, key: Key, decided: DecidedBatch) -> None:
        """Give a verdict to all who watch the batch."""
        tickets = self._watched.pop(key, None)
        if tickets is None:
            return
        self._young.discard(key)
        for ticket in tickets:
            ticket.decide(key[1], decided)

    def __len__(self) -> int:
        return len(self._watched)
