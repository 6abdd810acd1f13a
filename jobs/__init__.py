"""One module per job: plan on the driver, execute on Spark tasks, commit on the driver."""
