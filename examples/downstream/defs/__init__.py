"""The files that Dagster loads: components in `defs.yaml` files, and assets in any module."""
