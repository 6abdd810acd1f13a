"""Code that test files and benchmarks share. The product does not import it, and the wheel does not contain it."""
