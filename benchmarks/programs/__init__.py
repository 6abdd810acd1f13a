"""Programs for the Python environments of peers (`benchmarks.peers`). The environments lack the project's packages.

Each program prints JSON.
"""
