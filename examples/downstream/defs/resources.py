"""The I/O manager of this project. It stores assets as tables in the warehouse of their source table."""

from __future__ import annotations

import os

from dagster import Definitions, definitions

from tidemark.dagster import TidemarkIOManager


@definitions
def io_manager() -> Definitions:
    """Return the default I/O manager. An asset uses it unless the asset selects another one."""
    return Definitions(resources={"io_manager": TidemarkIOManager(root=os.environ.get("WAREHOUSE", "warehouse"))})
