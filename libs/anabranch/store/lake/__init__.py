"""What the compactor asks of Postgres and leaves there, and where readers find its files."""
