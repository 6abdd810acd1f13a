"""Writers of a keyed table: WAL, generations, and the merge into the base."""
