"""Distribution of a raw log to tables, without loss or duplicates."""
