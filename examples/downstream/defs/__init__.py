"""Each file in here is found by Dagster: a component by its `defs.yaml`, assets in any module."""
