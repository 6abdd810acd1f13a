"""The data model: stored formats, rows in memory, settings of tables, maintenance steps."""
