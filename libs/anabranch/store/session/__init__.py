"""Sessions with Postgres: how they are made, what holds in each of them, how they end, and what an error means."""
