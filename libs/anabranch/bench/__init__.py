"""Measurements, each with its baseline taken in the same run."""
