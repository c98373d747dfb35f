"""``anabranch schema``: how a database's schema has changed, and what a migration will mean."""
