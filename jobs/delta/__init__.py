"""Ingest from a Delta table: what Spark reads of it, and the commits that bring it in (decision 0158)."""
