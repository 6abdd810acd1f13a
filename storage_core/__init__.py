"""Tidemark's storage core: tables on object storage. The public names are in the package `tidemark`."""
