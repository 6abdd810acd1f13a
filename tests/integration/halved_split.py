"""A window that no compaction can read until it is repaired."""

from __future__ import annotations

from pathlib import Path

from tidemark import Table


def halve_split(table: Table, window: int) -> Path:
    """Cut one split of the window in half, on a local disk, and return its file; `repair` makes it whole."""
    key = min(path for path, add in table.snapshot.splits.items() if add.windowStart == window)
    file = Path(table.uri.removeprefix("file://")) / key
    file.with_name("whole").write_bytes(file.read_bytes())
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def repair(file: Path) -> None:
    """Bring back what the file of `halve_split` held."""
    file.with_name("whole").replace(file)
