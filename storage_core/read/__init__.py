"""Reads of one snapshot: scans, SQL, lookups, changes, history and search."""
