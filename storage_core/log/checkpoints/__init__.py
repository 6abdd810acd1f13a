"""States of versions, written and loaded, so that opening need not replay the log from its start."""
