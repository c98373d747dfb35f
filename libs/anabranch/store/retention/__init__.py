"""The floor of the log: what holds it, the proof before it moves, and what goes."""
