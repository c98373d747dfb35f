"""Cells as Postgres takes and gives them: parameters, text, types, and keys in our indexes."""
