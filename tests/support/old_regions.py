"""Set old file times in a local table, so that its writers seem to have written nothing for a long time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidemark import Table


def make_old(table: Table, seconds: int) -> None:
    """Set the age of all files of the regions to this many seconds."""
    at = time.time() - seconds
    for path in Path(table.uri.removeprefix("file://")).rglob("_mem_wal/**/*.*"):
        os.utime(path, (at, at))
