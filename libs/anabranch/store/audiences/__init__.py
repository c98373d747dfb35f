"""Audiences: which principals see which rows, and may write to them."""
