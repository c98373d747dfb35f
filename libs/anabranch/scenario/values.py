"""Values as scenario files write them, beyond what YAML has, and the ids that ``$name`` stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ulid import ULID

from anabranch.errors import AnabranchError

_NAME = re.compile(r"\$([A-Za-z0-9_-]+)")
_IN_SQL = re.compile(r"'(\$[A-Za-z0-9_-]+)'")


class FormatError(AnabranchError, ValueError):
    """A file is not in the format; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value (``!json``), as YAML gives it: None is the JSON null."""

    value: Any


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment (``!ts``), as text that Postgres takes."""

    text: str


class Ids:
    """The ULIDs that ``$name`` stands for, each made at first use and the same from then on."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The ULID of a name, without its ``$``."""
        return self._made.setdefault(name, str(ULID()))

    def resolve(self, value: Any) -> Any:
        """``value`` with every text that is a ``$name``, however deep, replaced."""
        if isinstance(value, str):
            found = _NAME.fullmatch(value)
            return self.of(found[1]) if found else value
        if isinstance(value, list):
            return [self.resolve(v) for v in value]
        if isinstance(value, Mapping):
            return {k: self.resolve(v) for k, v in value.items()}
        if isinstance(value, Json):
            return Json(self.resolve(value.value))
        return value

    def in_sql(self, text: str) -> str:
        """SQL with every literal that is exactly a ``'$name'`` replaced; ``$1`` and ``$f$`` elsewhere are SQL's."""
        return _IN_SQL.sub(lambda found: f"'{self.resolve(found[1])}'", text)

    def told(self, text: str) -> str:
        """``text`` for people: the ids in it named as the file names them."""
        for name, made in self._made.items():
            text = text.replace(made, f"${name}")
        return text
