"""The log, whole tables of one moment, and the history that positions belong to."""
