"""The floor of the log: its holds, the proof before it moves, and the rows that are removed."""
