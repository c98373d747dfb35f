"""Takes batches in durably and answers with their verdicts."""
