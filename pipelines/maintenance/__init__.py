"""The upkeep sensor, which finds the runs that tables need and that fit the budgets, and requests these runs."""
