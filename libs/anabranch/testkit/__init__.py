"""Real parts for tests and for one-command use: embedded Postgres and databases made in it."""
