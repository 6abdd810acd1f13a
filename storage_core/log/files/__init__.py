"""The live splits of a snapshot, in columns, each part read when somebody looks at it."""
