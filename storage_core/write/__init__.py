"""Input of rows: regions with a WAL, landed files, raw logs, and appends."""
