"""Kinds of stored objects, their keys, and their bytes as records. No I/O."""
