"""Giving back what is left of a damaged table, in a new place."""
