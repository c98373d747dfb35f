"""The roles as which groups are committed, and what they may do."""
