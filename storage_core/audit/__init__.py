"""Every invariant of splits and compactions, judged by the files (docs/architecture/compaction.md)."""
