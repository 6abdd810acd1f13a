"""Who maintains a table: leases, how they are stored, and the heartbeat that renews one."""
