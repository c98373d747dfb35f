"""The writes of a group commit: rows, and the records that go with them."""
