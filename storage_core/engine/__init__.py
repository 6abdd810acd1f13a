"""The check of SQL that users or programs pass to Tidemark, and the DuckDB sessions that run this SQL."""
