"""Benchmarks of the claims in the documentation. Most print a ratio of two sides that were measured in one run.

`python -m benchmarks.<name> [--small] [--json]` runs one benchmark. `make bench` runs all except `sql_confinement`,
which compares two releases, and writes `benchmarks/RESULTS.md`.
"""
