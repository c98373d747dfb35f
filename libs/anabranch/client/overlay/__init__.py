"""What is shown: the base, and above it the pending changes of each row."""
