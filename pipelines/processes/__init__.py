"""The processes of Dagster and the warm Spark server: how they are started, and how they are kept running."""
