"""The checks that every call passes: credentials, forms, limits, turns, and the errors that end it."""
