"""The object store contract, the stores that implement it, request counts, and the cache on the local disk."""
