"""Benchmarks: every claim of the documentation, printed as a ratio measured in one run on this machine.

`python -m benchmarks.<name> [--small] [--json]`; `make bench` runs them all and writes `benchmarks/RESULTS.md`.
"""
