"""Landed files to rows, and rows to splits, each row exactly once (design page 03, "batch ingest")."""
