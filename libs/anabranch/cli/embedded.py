"""The embedded Postgres for commands that also do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.embedded.binaries import PostgresUnavailableError

if TYPE_CHECKING:
    from anabranch.embedded.postgres import EmbeddedPostgres


def embedded_postgres(instead: str) -> type[EmbeddedPostgres]:
    """The class of embedded servers; ``instead`` ends the error where the packages that it needs are not installed.
    They need not be where a command is given another server.

    Raises:
        PostgresUnavailableError: psutil is not installed.
    """
    try:
        from anabranch.embedded.postgres import EmbeddedPostgres
    except ModuleNotFoundError as error:
        if error.name != "psutil":
            raise
        raise PostgresUnavailableError(
            f"embedded Postgres needs the package psutil, which anabranch-server[embedded] brings; or {instead}"
        ) from error
    return EmbeddedPostgres
