"""Changes that no batch named: read, ordered, and made batches of the server."""
