"""The check of SQL from outside, and the DuckDB sessions that run it."""
