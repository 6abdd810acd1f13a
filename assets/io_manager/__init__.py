"""Dagster's I/O manager for tables. An asset is a table, and a partition of the asset is a slice of the table."""
