"""Rows in memory: schema, order, keys, windows, statistics, folding."""
