"""Compaction: rewrite the splits of a window as fewer splits with the same rows."""
