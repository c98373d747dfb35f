"""Cells in SQL: parameters and expressions, texts that people write, and keys in our indexes."""
