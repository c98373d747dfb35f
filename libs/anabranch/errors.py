"""The root of this project's errors, by which all of them can be found, distinguished and caught.

Applications catch ``anabranch.client.ClientError``; the server's rooms raise ``ServerError``; the rules and the forms
of values, which both use, have the root itself. ``pytest -s tests/unit/test_error_tree.py`` prints the tree. Only the
standard library, so that devices and rules can use it.
"""

from __future__ import annotations

from typing import ClassVar


class AnabranchError(Exception):
    """Base of all errors that this project itself raises."""

    REASON: ClassVar[str] = ""
    """The reason (``anabranch.v1.Reason`` without its prefix) by which callers and devices know the error; "" where
    they never get the error with a reason, or get it with different ones."""


class ServerError(AnabranchError):
    """Base of the errors that the server's rooms, services and commands raise."""
