"""Imports of what others wrote: folders of Parquet, Delta tables, streams of Arrow data."""
