"""Batches from their append to their verdict, and the claim under which a resolver takes them."""
