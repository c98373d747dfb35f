"""An embedded Postgres: a whole server in one folder, for ``anabranch up`` and for tests."""
