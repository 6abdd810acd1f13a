"""The I/O manager of this project. It stores the assets in tables in the same warehouse as their source table."""

from __future__ import annotations

import os

from dagster import Definitions, definitions

from tidemark.dagster import TidemarkIOManager


@definitions
def io_manager() -> Definitions:
    """Return the default I/O manager. Assets that select no other I/O manager use it."""
    return Definitions(resources={"io_manager": TidemarkIOManager(root=os.environ.get("WAREHOUSE", "warehouse"))})
