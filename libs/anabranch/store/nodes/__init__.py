"""Nodes and the keys of callers: their identities and their last reports."""
