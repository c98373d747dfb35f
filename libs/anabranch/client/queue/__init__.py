"""Batches on their way: queued, sent, decided, and gone from the queue."""
