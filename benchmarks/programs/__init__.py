"""Programs for the Pythons of peers (`benchmarks.peers`), which do not have the project's packages.

Each prints JSON.
"""
