"""Examples that run on real data."""
