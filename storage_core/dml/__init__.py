"""Statements that change rows: delete, update, overwrite, upsert (docs/architecture/ingestion.md, "Changing rows")."""
