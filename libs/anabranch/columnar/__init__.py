"""The lake: its files, their reading and their proof; values in them: ``anabranch.values.parquet``."""
