"""SyncedDb: a device's SQLite kept in step with the server."""
