"""Distribution: the raw log divided among the tables, each record once (docs/architecture/ingestion.md, "Raw log")."""
