"""Jobs. A job plans on the driver, executes its tasks on Spark or in its own process, and commits on the driver."""
