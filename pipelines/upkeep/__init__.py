"""The upkeep sensor: what tables want, what budgets leave, and which runs it asks for."""
