"""Spark for jobs: sessions, the code that jobs send to workers, and the code of tasks."""
