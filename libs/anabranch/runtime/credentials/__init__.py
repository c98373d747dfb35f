"""Credentials of callers: keys and tokens, the principal that they prove, and how the end of either is learned."""
