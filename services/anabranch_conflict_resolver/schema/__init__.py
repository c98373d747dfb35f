"""Takes changes of the tables by DDL: each is the beginning of a group of its own."""
