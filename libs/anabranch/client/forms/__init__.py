"""Values as SQLite holds them, as an app gets them, and as Postgres prints them."""
