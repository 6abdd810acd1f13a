"""The landed files of the demo. Together, the files contain the access log.

The last file arrives late and contains lines for almost every window.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from examples.datasets import access_log_lines

FILES = 4
LATE_EVERY = 50


def on_time(lines: list[str]) -> list[list[str]]:
    """Return the lines that arrive on time as four files of similar size, in the order of the log."""
    kept = [line for number, line in enumerate(lines) if number % LATE_EVERY]
    size = -(-len(kept) // FILES)
    return [kept[start : start + size] for start in range(0, len(kept), size)]


def late(lines: list[str]) -> list[str]:
    """Return the lines that arrive last.

    The late lines are every fiftieth line of the log, so almost every window has a late line.
    """
    return lines[::LATE_EVERY]


def land_on_time(landing: Path) -> list[Path]:
    """Write the four files with gzip compression, and return their paths."""
    return [
        _land(landing / f"part-{number}.log.gz", part) for number, part in enumerate(on_time(access_log_lines()), 1)
    ]


def land_late(landing: Path) -> Path:
    """Write the late file and return its path."""
    return _land(landing / "part-late.log.gz", late(access_log_lines()))


def _land(path: Path, lines: list[str]) -> Path:
    """Write the file atomically. Every call writes the same bytes. A landed file never changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name("." + path.name)
    draft.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    draft.replace(path)
    return path
