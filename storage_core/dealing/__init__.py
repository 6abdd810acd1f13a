"""Dealing: the raw log divided among the tables, each record once (design page 03, "Raw log")."""
