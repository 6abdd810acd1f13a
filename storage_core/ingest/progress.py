"""What of the landed files is in the table already, as the transaction log records it.

| appId | version | says |
|---|---|---|
| `landed:<path>@<window>` | size of the file in bytes | the rows of this window are in |
| `landed:<path>` | size of the file in bytes | all rows are in |
| `rejected:<path>` | size of the file in bytes | the file as it is can give no row; it is in quarantine |

`<window>` is the window's start in seconds, or `null`. `%` and `@` in paths are percent-encoded, so that no path reads
as another path's window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_core.ingest.landing import LandedFile
from storage_core.log.snapshot import Snapshot

_LANDED = "landed:"
_REJECTED = "rejected:"

Window = int | None


@dataclass(frozen=True, slots=True)
class FileProgress:
    """One file: its size when it was ingested (None: never), the windows that are in, its size when it was rejected."""

    ingested_size: int | None = None
    whole: bool = False
    windows: frozenset[Window] = frozenset()
    rejected_size: int | None = None

    def is_settled(self, size: int) -> bool:
        """Return whether nothing can come of the file at this size: it is all in, or rejected as it is."""
        return self.rejected_size == size or (self.whole and self.ingested_size == size)

    def has_changed(self, size: int) -> bool:
        """Return whether rows of this file are in that were read when it had another size."""
        return self.ingested_size not in (None, size)


def progress(txns: Mapping[str, int], files: Iterable[LandedFile]) -> dict[str, FileProgress]:
    """Return the progress of every file by path, in one pass over the recorded transactions."""
    windows: defaultdict[str, dict[Window, int]] = defaultdict(dict)
    for app_id, size in txns.items():
        file_app_id, at, window = app_id.rpartition("@")
        if at and app_id.startswith(_LANDED):
            windows[file_app_id][None if window == "null" else int(window)] = size
    return {file.path: _of_file(file.path, txns, windows.get(file_app(file.path), {})) for file in files}


def pending(snapshot: Snapshot, files: Iterable[LandedFile]) -> list[LandedFile]:
    """Return the files of which something may be left to do, in the order given; no request."""
    listed = list(files)
    known = progress(snapshot.txns, listed)
    return [file for file in listed if not known[file.path].is_settled(file.size)]


def file_app(path: str) -> str:
    """Return the appId that says that the whole file is in."""
    return _LANDED + _escaped(path)


def window_app(path: str, window: Window) -> str:
    """Return the appId that says that this window of the file is in."""
    return f"{file_app(path)}@{'null' if window is None else window}"


def rejected_app(path: str) -> str:
    """Return the appId that says that the file as it is can give no row."""
    return _REJECTED + _escaped(path)


def _of_file(path: str, txns: Mapping[str, int], windows: Mapping[Window, int]) -> FileProgress:
    whole = txns.get(file_app(path))
    sizes = [size for size in (whole, *windows.values()) if size is not None]
    return FileProgress(
        ingested_size=sizes[0] if sizes else None,
        whole=whole is not None,
        windows=frozenset(windows),
        rejected_size=txns.get(rejected_app(path)),
    )


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("@", "%40")
