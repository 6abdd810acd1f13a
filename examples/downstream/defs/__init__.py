"""The files that Dagster loads. They are components in `defs.yaml` files, and assets in any module."""
