"""Modules for the schema, order, keys, windows, statistics and folding of rows in memory."""
