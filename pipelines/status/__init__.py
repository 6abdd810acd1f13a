"""How tables are: for the terminal, the report, alerts and scrapers alike."""
