"""Whole tables for a node, as Arrow: turns, sessions, sources, and comparisons by ranges of keys."""
