"""The raw log: one log of many producers for many tables, kept in several stores (docs/architecture/ingestion.md)."""
