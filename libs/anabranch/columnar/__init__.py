"""Arrow: type mapping and codecs between Postgres rows, record batches and cells."""
