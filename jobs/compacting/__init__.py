"""Compactions: merges in groups of windows, in parts, and rows in windows of another duration."""
