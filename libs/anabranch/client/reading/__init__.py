"""The server's rows into the file: pages of the log, pulls, sums, repair and rewinds."""
