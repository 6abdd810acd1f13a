"""One module per job: plan on the driver, execute on Spark tasks, commit once on the driver (design page 08)."""
