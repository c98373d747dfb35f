"""Databases and synced tables: their registration, columns and policies, and whether they still are as registered."""
