"""Rows enter a table in four ways: region writers with a WAL, landed files, raw logs and appends."""
