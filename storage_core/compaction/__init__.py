"""Compaction: fewer splits per window, the same rows (docs/architecture/compaction.md)."""
