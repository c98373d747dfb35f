"""Which schemas are databases, which tables are synced, what they are like, and whether they still are so."""
