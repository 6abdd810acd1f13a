"""Spark as jobs use it: sessions, the code that they send along, and what runs inside a task."""
