"""Alembic's environment: runs on the connection that ``anabranch.store.migrate`` hands over, in its
transaction."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    version_table_schema=context.config.attributes["schema"],
    transaction_per_migration=False,
)
context.run_migrations()
