"""Batch ingest: from landed files to rows, and from rows to splits, each row exactly once."""
