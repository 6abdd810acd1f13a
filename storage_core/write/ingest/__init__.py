"""Batch ingest. The package converts landed files to rows, and writes each row to a split exactly once."""
