"""The environment variables that say where Dagster keeps its history. Free of Dagster."""

DAGSTER_HOME = "DAGSTER_HOME"
POSTGRES = "TIDEMARK_DAGSTER_POSTGRES"
"""The variable with the URL of the database, in every process of Dagster."""
LOG_LEVEL = "TIDEMARK_LOG_LEVEL"
"""The variable with the lowest level of what runs show on a terminal, in the process that makes the home of Dagster."""
