"""The processes of Dagster and the warm Spark server.

The package starts the processes and restarts each process after an unexpected end.
"""
