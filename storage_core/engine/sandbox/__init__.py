"""Sandbox processes. They run queries without rights and secrets."""
