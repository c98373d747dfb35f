"""Spark as a run uses it: its session, its Java, its workers, its sources, and how far it is."""
