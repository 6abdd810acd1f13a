"""The processes that run queries without rights and secrets."""
