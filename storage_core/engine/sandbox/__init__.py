"""Sandbox processes, which run queries without rights and secrets."""
