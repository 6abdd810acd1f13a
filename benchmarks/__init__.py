"""Benchmarks: every claim of the documentation, printed as a ratio measured in one run on this machine.

`python -m benchmarks.<name> [--small] [--json]`; `make bench` writes `benchmarks/RESULTS.md`: it runs all but
`sql_confinement`, which compares two releases.
"""
