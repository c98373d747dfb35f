"""What a migration will mean, found out on a structural copy of the database."""
