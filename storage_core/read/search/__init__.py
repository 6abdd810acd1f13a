"""Searches by text and by embedding over all rows of a table, with filters and facets."""
