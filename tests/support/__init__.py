"""What several test files and the benchmarks use. The product imports none of it, and the wheel has none of it."""
