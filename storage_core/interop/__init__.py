"""Other formats: Delta and Iceberg mirrors, imports, and landing from Delta tables."""
