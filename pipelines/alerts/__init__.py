"""Alerts: who hears of what, how it is told, and the sensors of Dagster that ask for it."""
