"""Cuts the log and removes what has expired."""
