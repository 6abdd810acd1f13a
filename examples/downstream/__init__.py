"""A Dagster project with a table that Tidemark keeps up, and two assets that are made of its rows."""
