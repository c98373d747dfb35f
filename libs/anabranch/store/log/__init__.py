"""Read the log, whole tables at one moment, and the history that positions belong to."""
