"""The processes of Dagster and the warm Spark server.

The package starts them and restarts them after an unexpected end.
"""
