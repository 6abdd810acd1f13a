"""Finding what is wrong with a stored table, and giving back what is left of it in a new place."""
