"""Threads: a listener that hears of work, workers that do it, and the pace at which they do."""
