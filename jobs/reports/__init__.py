"""What a job says when it has ended: to a person, as JSON, and to Dagster."""
