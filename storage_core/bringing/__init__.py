"""Bringing tables in: imports of what others wrote, and clones of tables."""
