"""Everything that is kept in Postgres, and the only part that speaks SQL to it."""
