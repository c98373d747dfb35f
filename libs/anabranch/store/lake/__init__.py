"""The compactor's reads and writes in Postgres, and the look-ups by which readers find its files."""
