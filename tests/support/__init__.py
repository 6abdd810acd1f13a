"""Code that test files and benchmarks share. The product never imports `tests.support`, and the wheel omits it."""
