"""Changes of synced tables by DDL: how they are noticed, what they mean, and how the catalog follows them."""
