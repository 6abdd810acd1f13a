"""Alerts. The package contains the receivers, the delivery, and the Dagster sensors that send alerts."""
