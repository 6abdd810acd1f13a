"""Finding what is wrong with a stored table."""
