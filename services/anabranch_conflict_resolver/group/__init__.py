"""One group: claimed, tried, recorded and committed."""
