"""Files of the lake: written and reported by tasks, and removed when they are no longer needed."""
