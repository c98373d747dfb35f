"""From a failure to its cause: a batch, a table, or neither."""
