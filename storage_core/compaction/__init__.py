"""Compaction: fewer splits per window, the same rows (design page 04)."""
