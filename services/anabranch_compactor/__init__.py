"""The compactor: a Spark job that makes Parquet of the log."""
