"""Scenarios: stories about a server and some nodes, written in YAML, run against real services and a real Postgres."""
