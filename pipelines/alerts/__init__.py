"""Alerts: the receivers, the delivery, and the sensors of Dagster that send alerts."""
