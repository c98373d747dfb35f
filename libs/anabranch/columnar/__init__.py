"""The lake: its files, how they are read, and what proves them; values in them: ``anabranch.values.parquet``."""
