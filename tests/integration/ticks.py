"""A declaration of a table with hourly windows over one day, for tests of backfills."""

from __future__ import annotations

DECLARATION = """
name: ticks
uri: warehouse/ticks
columns: {timestamp: timestamp!, value: int!}
time_column: timestamp
window: 1h
sort_schema: value|timestamp/V2
partitions: {start: 2015-05-01T00:00, end: 2015-05-02T00:00}
"""
