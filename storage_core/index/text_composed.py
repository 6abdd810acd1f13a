"""Many full-text segments as one tantivy index: hard links to their files, and a `meta.json` that lists them all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.index import text_files
from storage_core.index.text_files import META
from storage_core.scratch import scratch_folder
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy


@dataclass(frozen=True, slots=True)
class Composed:
    """Where the documents of a composed index come from.

    `sources[i]` is the position, among the directories composed, of the one with the tantivy segment of ordinal `i`;
    `rows[p]` is how many rows the directory at position `p` has.
    """

    sources: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Searcher:
    """A composed index that was opened: its files are mapped, and needed by no name any more. Threads may share one."""

    tantivy: tantivy.Searcher
    composed: Composed


def open_searcher(directories: Sequence[Path], definition: IndexDefinition, scratch: Path) -> Searcher:
    """Return a searcher over all `directories`. Raises `Corrupt`, and what tantivy raises.

    `scratch` is an existing directory, best on their file system; nothing is left in it.
    """
    import tantivy

    with scratch_folder("fulltext", scratch) as root:
        composed = compose(directories, root / "composed", definition)
        return Searcher(tantivy.Index.open(str(root / "composed")).searcher(), composed)


def compose(directories: Sequence[Path], target: Path, definition: IndexDefinition) -> Composed:
    """Create `target` as one tantivy index over all `directories`, by hard links. Raises `Corrupt`.

    Only what `meta.json` lists is linked, and what this writes into `target` is its own `meta.json`.
    """
    target.mkdir()
    segments: dict[str, int] = {}
    sources: list[int] = []
    rows: list[int] = []
    for source, directory in enumerate(directories):
        own = text_files.read_meta(directory, definition)
        if again := own.keys() & segments.keys():
            raise text_files.corrupt(directory.name, f"segment {min(again)} is one of another split too")
        segments.update(own)
        sources.extend([source] * len(own))
        rows.append(sum(own.values()))
        _link_segment_files(directory, target, own)
    (target / META).write_text(text_files.meta_of(segments, definition))
    return Composed(sources=tuple(sources), rows=tuple(rows))


def _link_segment_files(source: Path, target: Path, segments: Iterable[str]) -> None:
    # Other files are meta.json, and tantivy's locks and its list of managed files; only writers need them.
    for name in (name for each in segments for name in text_files.names_of(each)):
        try:
            os.link(source / name, target / name)
        except OSError:  # a file system without hard links
            shutil.copyfile(source / name, target / name)
