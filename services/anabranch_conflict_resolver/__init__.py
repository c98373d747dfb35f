"""The one writer of a database: commits waiting batches in groups."""
