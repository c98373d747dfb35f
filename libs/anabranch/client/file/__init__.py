"""A device's file: its connections and transactions, its tables, its layout, and its owner."""
