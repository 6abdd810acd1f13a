"""Where the assets of this project are kept: in tables beside the one that they are made of."""

from __future__ import annotations

import os

from dagster import Definitions, definitions

from tidemark.dagster import TidemarkIOManager


@definitions
def io_manager() -> Definitions:
    """Return the I/O manager of every asset that names no other."""
    return Definitions(resources={"io_manager": TidemarkIOManager(root=os.environ.get("WAREHOUSE", "warehouse"))})
