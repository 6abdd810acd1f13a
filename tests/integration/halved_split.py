"""A window with a truncated split, which no compaction can read before a repair."""

from __future__ import annotations

from pathlib import Path

from tidemark import Table


def halve_split(table: Table, window: int) -> Path:
    """Truncate one split of the window to half its size on a local disk and return its file.

    `repair` restores the file.
    """
    key = min(path for path, add in table.snapshot.splits.items() if add.windowStart == window)
    file = Path(table.uri.removeprefix("file://")) / key
    file.with_name("whole").write_bytes(file.read_bytes())
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def repair(file: Path) -> None:
    """Restore the content of the file that `halve_split` truncated."""
    file.with_name("whole").replace(file)
