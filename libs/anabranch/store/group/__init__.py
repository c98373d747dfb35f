"""What a group commit writes: rows, and the records that go with them."""
