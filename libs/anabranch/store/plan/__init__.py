"""The meaning of a migration, found out on a structural copy of the database."""
