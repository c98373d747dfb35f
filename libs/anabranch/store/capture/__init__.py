"""Direct changes of synced tables: the triggers that capture them, and how they are read."""
