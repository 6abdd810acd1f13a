"""The upkeep sensor. It finds the runs that tables need and the runs that fit the budgets, and requests runs."""
