"""The stack under attack as attackers see it, and what they find."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """``addresses``: host:port by service. ``device_key`` and ``admin_key``: API keys of the attacker's own principals.
    ``role_url``: Postgres, as a role that may connect and owns nothing of ours."""

    addresses: Mapping[str, str]
    db_name: str
    device_key: str
    admin_key: str
    role_url: str


@dataclass
class Findings:
    """The findings of attackers; one for all of them, used by several threads.

    ``answers``: how often each answer came. ``breaches``: what must not be, each told once, with how it came about.
    """

    answers: Counter[str] = field(default_factory=Counter)
    breaches: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, what: str) -> None:
        """Count an answer."""
        with self._lock:
            self.answers[what] += 1

    def breach(self, what: str, how: str) -> None:
        """Note a breach; the first example of a kind is kept."""
        with self._lock:
            self.answers[f"BREACH {what}"] += 1
            self.breaches.setdefault(what, how)
