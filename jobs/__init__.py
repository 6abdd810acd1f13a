"""Jobs. Jobs. A job plans and commits on the driver, and executes its tasks on Spark or in its own process."""
