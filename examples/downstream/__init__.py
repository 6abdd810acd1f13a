"""A Dagster project. Tidemark maintains one table, and two assets are computed from the rows of this table."""
