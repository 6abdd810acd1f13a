"""Landed files to rows, and rows to splits, each row exactly once (docs/architecture/ingestion.md, "Batch ingest")."""
