"""The I/O manager of this project. The I/O manager stores each asset next to its source table in one warehouse."""

from __future__ import annotations

import os

from dagster import Definitions, definitions

from tidemark.dagster import TidemarkIOManager


@definitions
def io_manager() -> Definitions:
    """Return the default I/O manager. An asset uses the default unless the asset selects another I/O manager."""
    return Definitions(resources={"io_manager": TidemarkIOManager(root=os.environ.get("WAREHOUSE", "warehouse"))})
