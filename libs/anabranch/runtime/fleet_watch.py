"""Ends services of a fleet that are not ready for long though Postgres answers, so that their keepers start them again.

A service recovers by itself when Postgres does; this is for unforeseen states: a service that hangs or never recovers.
State: for each service, since when it has not been ready, of which process; and since when Postgres has answered, which
is asked only while a service is not ready. While Postgres is away no service is ended: it would not help. A process
that has not listened yet is starting, and has more time: on a slow machine its start would never complete otherwise.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from anabranch.runtime.fleet import Fleet
from anabranch.runtime.health import probe
from anabranch.store.session.readiness import answers

UNREADY_S = 30.0
"""How long a service may be unready that has listened."""
STARTING_S = 180.0
"""How long a process may take until it listens."""
_LOOK_S = 1.0
_PROBE_S = 1.0
_JOIN_S = 10.0


class FleetWatch:
    """Watches while its block lasts. ``say`` is called with a line for people: which service is ended, and why."""

    def __init__(
        self, fleet: Fleet, postgres_url: str, say: Callable[[str], None], *, unready_s: float = UNREADY_S
    ) -> None:
        self._fleet = fleet
        self._url = postgres_url
        self._say = say
        self._unready_s = unready_s
        self._since: dict[str, tuple[int, float]] = {}
        self._listened: dict[str, int] = {}
        self._answers_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-watch", daemon=True)

    def __enter__(self) -> FleetWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            states = {name: self._look(name) for name in self._fleet.names}
            if not self._since:
                self._answers_since = None
                continue
            if not answers(self._url, "anabranch-up"):
                self._answers_since = None
                continue
            now = time.monotonic()
            self._answers_since = self._answers_since or now
            for name, (pid, since) in list(self._since.items()):
                unready_s = now - max(since, self._answers_since)
                limit_s = self._unready_s if self._listened.get(name) == pid else STARTING_S
                if unready_s >= limit_s and not self._stop.is_set():
                    self._end(name, pid, unready_s, states[name])

    def _look(self, name: str) -> str:
        """Return a service's state. Its time starts anew if it has no process, or another process than before."""
        pid = self._fleet.child(name).pid
        state = probe(self._fleet.addresses[name], _PROBE_S)
        if pid is not None and state != "UNREACHABLE" and self._listened.get(name) != pid:
            # From here on its time to get ready counts, however long it took to start.
            self._listened[name] = pid
            self._since.pop(name, None)
        if pid is None or state == "SERVING":
            self._since.pop(name, None)
        elif self._since.get(name, (None,))[0] != pid:
            self._since[name] = (pid, time.monotonic())
        return state

    def _end(self, name: str, pid: int, unready_s: float, state: str) -> None:
        child = self._fleet.child(name)
        if child.pid != pid:
            return
        why = "it does not answer" if state == "UNREACHABLE" else last_objection(child.log_tail())
        self._say(f"{name} was not ready for {unready_s:.0f} s though Postgres answers ({why}): it is ended")
        self._since.pop(name, None)
        child.kill()


def last_objection(log: str) -> str:
    """Return why a service is not ready, by the last objection in its log."""
    for line in reversed(log.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue  # the first line may be cut, and not every library writes JSON
        if isinstance(said, dict) and said.get("event") == "not ready":
            return str(said.get("detail"))
    return "its log does not say why"
