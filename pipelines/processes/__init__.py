"""The processes that Dagster consists of, and Spark beside them: what each is, and that it stays up."""
