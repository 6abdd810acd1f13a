"""Regions of a table on local files whose writers have been silent for long, though nobody waits."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidemark import Table


def make_old(table: Table, seconds: int) -> None:
    """Let everything of the regions have been written so long ago."""
    at = time.time() - seconds
    for path in Path(table.uri.removeprefix("file://")).rglob("_mem_wal/**/*.*"):
        os.utime(path, (at, at))
