"""Anabranch: offline-first sync for Postgres."""
