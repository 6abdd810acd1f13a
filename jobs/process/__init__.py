"""The process that a job runs in: the signals that stop it, its parent, and its name as a holder of leases."""
