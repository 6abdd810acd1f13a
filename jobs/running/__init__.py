"""What runs of jobs have in common: a table, leases, tasks, commits, costs and an exit code."""
