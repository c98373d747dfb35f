"""The shown rows: the base, and above it the pending changes of each row."""
