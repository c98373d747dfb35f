"""Commands that read the lake."""
