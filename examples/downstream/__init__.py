"""A Dagster project.

An example in which Tidemark maintains one table. Two assets are computed from the rows of this table.
"""
