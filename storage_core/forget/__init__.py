"""Forgetting rows: deleted, rewritten away, due for collection, and searched for (docs/architecture/collection.md)."""
