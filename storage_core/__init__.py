"""Tidemark's storage core: tables on plain object storage. `tidemark` has the public names."""
