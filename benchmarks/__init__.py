"""Benchmarks for the claims in the documentation. Most benchmarks measure two systems in one run and print the ratio.

`python -m benchmarks.<name> [--small] [--json]` runs one benchmark. `make bench` runs all benchmarks except
`sql_confinement`, and writes `benchmarks/RESULTS.md`. `sql_confinement` compares two releases.
"""
