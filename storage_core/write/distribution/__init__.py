"""Distribution of a raw log to tables, each record once."""
