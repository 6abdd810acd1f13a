"""Two producer processes that write one raw log to two stores. The demo then removes one store.

The module compares the acknowledged rows with the rows in the table.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from examples.producer import acknowledged_file
from storage_core.change.declaration import RawLogDeclaration
from storage_core.store.resolve import open_store
from tidemark import Table

AIRPORTS = ("EWR", "JFK")


def written() -> bool:
    """Return whether the producers have already written their rows. The producers write only once."""
    return any(acknowledged_file(airport).exists() for airport in AIRPORTS)


def acknowledged() -> list[str]:
    """Return the ids of all rows that were acknowledged as durable."""
    files = [acknowledged_file(airport) for airport in AIRPORTS]
    return [row for file in files if file.exists() for row in file.read_text(encoding="utf-8").split()]


def write_and_lose(lost: Path, *, after: int) -> int:
    """Start the producers. Remove the folder of a store when `after` rows are acknowledged.

    Returns:
        The number of rows that were acknowledged before the removal.
    """
    producers = [subprocess.Popen([sys.executable, "-m", "examples.producer", airport]) for airport in AIRPORTS]
    try:
        while len(acknowledged()) < after and any(each.poll() is None for each in producers):
            time.sleep(0.01)
        before = len(acknowledged())
        shutil.rmtree(lost, ignore_errors=True)
        for each in producers:
            if each.wait():
                raise RuntimeError(f"a producer failed with exit code {each.returncode}")
    finally:
        for each in producers:
            each.kill()
    return before


def chunks(declaration: RawLogDeclaration) -> dict[str, int]:
    """Return the number of chunks in each store."""
    return {uri: sum(1 for _ in open_store(uri).list("live/")) for uri in declaration.uris}


def verdict(table: Table, told: Sequence[str]) -> str:
    """Check that the table contains every acknowledged row exactly once.

    Return the result as text, or raise `RuntimeError`.
    """
    found = Counter(table.scan(["id"]).to_arrow().column("id").to_pylist())
    missing, twice = set(told) - found.keys(), [row for row, times in found.items() if times > 1]
    if missing or twice or len(set(told)) != len(told):
        raise RuntimeError(
            f"{len(missing)} acknowledged rows are missing, {len(twice)} are in the table more than once"
        )
    return f"{len(told):,} acknowledged rows, {len(found):,} in the table: none is missing, none is there twice"
