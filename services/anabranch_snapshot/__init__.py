"""The read side: pages, a live tail and whole tables."""
