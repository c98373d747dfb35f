"""Threads: who hears of work, who does it, and how much of it at a time."""
