"""Splits: the immutable, sorted, self-describing Parquet files of the base table (design page 04)."""
