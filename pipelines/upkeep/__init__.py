"""The upkeep sensor: which runs tables need, which runs fit the budgets, and which runs the sensor requests."""
