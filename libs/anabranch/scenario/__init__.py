"""Scenarios: stories about a server and some nodes, told in YAML, run against real services and a real Postgres."""
