"""Nodes and the keys of those who call: who they are and what they have told."""
