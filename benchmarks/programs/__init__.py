"""Programs for the Pythons of peers (`benchmarks.peers`). These Pythons do not have the project's packages.

Each prints JSON.
"""
