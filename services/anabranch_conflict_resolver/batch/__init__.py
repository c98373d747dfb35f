"""One batch: its payload read, what can become of it, and the verdict in bytes."""
