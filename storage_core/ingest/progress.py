"""What of the landed files is in the table already, as the transaction log records it.

| appId | version | says |
|---|---|---|
| `landed:<path>@<window>` | size of the file in bytes | the rows of this window are in |
| `landed:<path>@<window>+<seconds>` | size in bytes | the same, of another duration than the table began with |
| `landed:<path>` | size of the file in bytes | all rows are in |
| `rejected:<path>` | size of the file in bytes | the file as it is can give no row; it is in quarantine |
| `content:<path>@<etag hash>` | xxh3-64 of its bytes | rows were read from this content, under this ETag |
| `replaced:<path>@<etag hash>` | size in bytes | under this ETag it has another content; that is in quarantine |
| `pruned:<path>@<content>` | size in bytes | the file went away after all rows of this content were in |

`<window>` is the window's start in seconds, or `null`; `<etag hash>` is `content.etag_hash(etag)`, `<content>` the
hash of the bytes in hex. Of a file that is gone, and all in, the last record is all that stays (`ingest.gone_files`).
`%` and `@` in paths are percent-encoded, so that no path reads as another path's window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage_core.ingest.content import as_hex, etag_hash, from_hex
from storage_core.ingest.landing import LandedFile
from storage_core.ingest.spans import NO_WINDOWS, Durations, Span
from storage_core.log.snapshot import Snapshot

_LANDED = "landed:"
_REJECTED = "rejected:"
_CONTENT = "content:"
_REPLACED = "replaced:"
_PRUNED = "pruned:"
FILE_KINDS = ("landed", "rejected", "content", "replaced")
"""The kinds of transactions that are pruned when their file is gone."""

Window = int | None


@dataclass(frozen=True, slots=True)
class FileProgress:
    """One file: its size when it was ingested (None: never), the windows that are in, its size when it was rejected.

    `spans` are windows of another duration than the table has now that are in.
    `contents` are those that rows were read from, by the hash of the ETag that they had; none where an early release
    read them, so that the size is all that is known. `replaced` are the hashes under which another content was found.
    `pruned` are the contents that were all in when the file went away: should it come back with one of them, no row of
    it is new.
    """

    ingested_size: int | None = None
    whole: bool = False
    windows: frozenset[Window] = frozenset()
    spans: frozenset[Span] = frozenset()
    rejected_size: int | None = None
    contents: Mapping[str, int] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    pruned: frozenset[int] = frozenset()

    def is_settled(self, file: LandedFile) -> bool:
        """Return whether nothing can come of the file as it lies there: it is all in, or rejected as it is."""
        if self.rejected_size == file.size or (file.etag is not None and etag_hash(file.etag) in self.replaced):
            return True
        is_known = not self.contents or (self.has_seen(file) and len(set(self.contents.values())) == 1)
        return self.whole and self.ingested_size == file.size and is_known

    def has_seen(self, file: LandedFile) -> bool:
        """Return whether the file needs no reading to know its content: its ETag is recorded, or it tells none."""
        return file.etag is None or etag_hash(file.etag) in self.contents

    def has_changed(self, size: int) -> bool:
        """Return whether rows of this file are in that were read when it had another size."""
        return self.ingested_size not in (None, size)


def progress(
    txns: Mapping[str, int], files: Iterable[LandedFile], durations: Durations = NO_WINDOWS
) -> dict[str, FileProgress]:
    """Return the progress of every file by path, in one pass over the recorded transactions."""
    marked: defaultdict[str, dict[str, int]] = defaultdict(dict)
    recorded = dict(txns.items())
    for app_id, version in recorded.items():
        name, at, mark = app_id.rpartition("@")
        if at and name.startswith((_LANDED, _CONTENT, _REPLACED, _PRUNED)):
            marked[name][mark] = version
    return {file.path: _of_file(file.path, recorded, marked, durations) for file in files}


def pending(snapshot: Snapshot, files: Iterable[LandedFile]) -> list[LandedFile]:
    """Return the files of which something may be left to do, in the order given; no request."""
    listed = list(files)
    known = progress(snapshot.txns, listed, Durations.of(snapshot.config))
    return [file for file in listed if not known[file.path].is_settled(file)]


def file_app(path: str) -> str:
    """Return the appId that says that the whole file is in."""
    return _LANDED + _escaped(path)


def window_app(path: str, window: Window, seconds: int | None = None) -> str:
    """Return the appId that says that this window of the file is in; `seconds` as of `Durations.recorded`."""
    mark = "null" if window is None else f"{window}" if seconds is None else f"{window}+{seconds}"
    return f"{file_app(path)}@{mark}"


def rejected_app(path: str) -> str:
    """Return the appId that says that the file as it is can give no row."""
    return _REJECTED + _escaped(path)


def content_app(file: LandedFile) -> str:
    """Return the appId that says which content the file has under its ETag."""
    return f"{_CONTENT}{_escaped(file.path)}@{etag_hash(file.etag or '')}"


def replaced_app(file: LandedFile) -> str:
    """Return the appId that says that the file under its ETag is not the one whose rows are in."""
    return f"{_REPLACED}{_escaped(file.path)}@{etag_hash(file.etag or '')}"


def pruned_app(path: str, content: int) -> str:
    """Return the appId that says that the file went away after all rows of this content were in."""
    return f"{_PRUNED}{_escaped(path)}@{as_hex(content)}"


def path_of(app_id: str) -> str:
    """Return the path of the file of which a transaction of `FILE_KINDS` speaks."""
    return app_id.partition(":")[2].partition("@")[0].replace("%40", "@").replace("%25", "%")


def _of_file(
    path: str, txns: Mapping[str, int], marked: Mapping[str, Mapping[str, int]], durations: Durations
) -> FileProgress:
    whole = txns.get(file_app(path))
    found = marked.get(file_app(path), {})
    spans = {_span(mark, durations.first) for mark in found if mark != "null"}
    windows: set[Window] = {start for start, seconds in spans if seconds == durations.current}
    sizes = [size for size in (whole, *found.values()) if size is not None]
    return FileProgress(
        ingested_size=sizes[0] if sizes else None,
        whole=whole is not None,
        windows=frozenset(windows | {None} if "null" in found else windows),
        spans=frozenset((start, each) for start, each in spans if each is not None and each != durations.current),
        rejected_size=txns.get(rejected_app(path)),
        contents=marked.get(_CONTENT + _escaped(path), {}),
        replaced=frozenset(marked.get(_REPLACED + _escaped(path), ())),
        pruned=frozenset(from_hex(content) for content in marked.get(_PRUNED + _escaped(path), ())),
    )


def _span(mark: str, first: int | None) -> tuple[int, int | None]:
    start, _, seconds = mark.partition("+")
    return int(start), int(seconds) if seconds else first


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("@", "%40")
