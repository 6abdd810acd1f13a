"""Programs for the Pythons of peers (`benchmarks.peers`), which have not what the project has: each prints JSON."""
