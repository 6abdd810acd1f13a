"""A cache of transaction logs in a SQL database."""
