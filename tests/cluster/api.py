"""As much of a client of the Kubernetes API as the tests need: requests, each with a deadline, and watches that end."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Thing = dict[str, Any]
T = TypeVar("T")
CALL_TIMEOUT_S = 60
PAUSE_S = 1
"""The longest that nobody looks while something is waited for that no watch tells of."""
MERGE_PATCH = "application/merge-patch+json"


class Refused(Exception):
    """The API server said no: ``code`` is HTTP's, ``message`` its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Answer:
    """``warnings``: what the server adds in headers, such as fields that are deprecated."""

    body: Thing
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Api:
    """An API server on loopback, spoken to with a token. Every call raises Refused, and OSError where none answers."""

    port: int
    token: str
    authority: Path

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Answer:
        """One request."""
        connection = self._connected()
        try:
            answer = self._asked(connection, method, path, body, query or {}, content)
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, _message(text))
        found: Thing = json.loads(text) if text.startswith("{") else {"text": text}
        return Answer(found, answer.headers.get_all("Warning") or [])

    def get(self, path: str, **query: str) -> Thing:
        """An object, or a list of them."""
        return self.call("GET", path, query=query).body

    def items(self, path: str, **query: str) -> list[Thing]:
        """The objects of a list."""
        found: list[Thing] = self.get(path, **query)["items"]
        return found

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> Answer:
        """Make an object in the list at ``path``; fields that the server doesn't know are refused."""
        return self.call("POST", path, body, query={"fieldValidation": "Strict", **query})

    def patch(self, path: str, body: Mapping[str, Any]) -> Thing:
        """Merge ``body`` into an object."""
        return self.call("PATCH", path, body, content=MERGE_PATCH).body

    def delete(self, path: str, **options: Any) -> None:
        """Remove an object; one that is gone already is as good."""
        try:
            self.call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except Refused as refused:
            if refused.code != 404:
                raise

    def changed(self, path: str, version: str, timeout_s: int) -> bool:
        """Whether anything of a list changes after ``version``, its resourceVersion, within ``timeout_s``."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(timeout_s)}
        connection = self._connected()
        try:
            answer = self._asked(connection, "GET", path, None, query, "")
            return bool(answer.readline())
        finally:
            connection.close()

    def _connected(self) -> http.client.HTTPSConnection:
        trusting = ssl.create_default_context(cafile=str(self.authority))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=CALL_TIMEOUT_S, context=trusting)

    def _asked(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        content: str,
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        return connection.getresponse()


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text


def until(what: str, timeout_s: float, look: Callable[[], T | None]) -> T:
    """Ask ``look`` again until it finds something, and return that. Raises AssertionError with ``what`` at the
    deadline."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(PAUSE_S)
    raise AssertionError(f"after {timeout_s:.0f} s: {what}")
