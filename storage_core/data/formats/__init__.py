"""The kinds of stored objects, their keys, and the conversion between their bytes and records. No I/O."""
