"""Delta tables as landing places: what their versions changed, and the files to read for it (decision 0158)."""
