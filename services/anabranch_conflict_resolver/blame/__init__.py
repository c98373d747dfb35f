"""From a failure to who is at fault: a batch, a table, or nobody."""
