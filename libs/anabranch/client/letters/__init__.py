"""What came to nothing, for people to see: dead letters and values that lost a conflict."""
