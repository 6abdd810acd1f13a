"""Clones of tables, with their files shared or copied."""
