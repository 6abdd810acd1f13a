"""The landed files of the demo: the access log cut into several files, one of them late and straddling windows."""

from __future__ import annotations

import gzip
from pathlib import Path

from examples.datasets import access_log_lines

FILES = 4
LATE_EVERY = 50


def on_time(lines: list[str]) -> list[list[str]]:
    """Return the lines that arrive on time, in the order they were written, as four files of about the same size."""
    kept = [line for number, line in enumerate(lines) if number % LATE_EVERY]
    size = -(-len(kept) // FILES)
    return [kept[start : start + size] for start in range(0, len(kept), size)]


def late(lines: list[str]) -> list[str]:
    """Return the lines that arrive last: every fiftieth of the whole log, so they belong to almost every window."""
    return lines[::LATE_EVERY]


def land_on_time(landing: Path) -> list[Path]:
    """Write the four files, gzipped, and return them."""
    return [
        _land(landing / f"part-{number}.log.gz", part) for number, part in enumerate(on_time(access_log_lines()), 1)
    ]


def land_late(landing: Path) -> Path:
    """Write the late file and return it."""
    return _land(landing / "part-late.log.gz", late(access_log_lines()))


def _land(path: Path, lines: list[str]) -> Path:
    """Write the file whole or not at all, with the same bytes every time: a landed file never changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name("." + path.name)
    draft.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    draft.replace(path)
    return path
