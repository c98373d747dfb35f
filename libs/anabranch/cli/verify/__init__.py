"""Commands that compare: a table with the log, a device's file with the server."""
